// The rectifier.

KERNEL relu(Count n, const Stored *x, Stored *y) {
    FOR_EACH(i, n) y[i] = stored(rectified(real(x[i])));
}

KERNEL add_relu(Count n, const Stored *x, const Stored *y, Stored *sum) {
    FOR_EACH(i, n) sum[i] = stored(rectified(real(x[i]) + real(y[i])));
}

KERNEL relu_gradient(Count n, const Stored *y, const Stored *grad, Stored *dx) {
    FOR_EACH(i, n) dx[i] = stored(passed(real(y[i]), real(grad[i])));
}
