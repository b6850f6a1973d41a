// Elementwise kernels, and the transpose. `n` counts vectors.

KERNEL sum(Count n, const Vector *x, const Vector *y, Vector *sum) {
    FOR_EACH(i, n) {
        Vector values = x[i], others = y[i];
        FOR_EACH_OF_VECTOR(k) values.of[k] = stored(real(values.of[k]) + real(others.of[k]));
        sum[i] = values;
    }
}

KERNEL relu(Count n, const Vector *x, Vector *y) {
    FOR_EACH(i, n) {
        Vector values = x[i];
        FOR_EACH_OF_VECTOR(k) values.of[k] = stored(rectified(real(values.of[k])));
        y[i] = values;
    }
}

KERNEL add_relu(Count n, const Vector *x, const Vector *y, Vector *sum) {
    FOR_EACH(i, n) {
        Vector values = x[i], others = y[i];
        FOR_EACH_OF_VECTOR(k) values.of[k] = stored(rectified(real(values.of[k]) + real(others.of[k])));
        sum[i] = values;
    }
}

// The sum is rounded as if it were stored.
KERNEL relu_gradient_of_sum(Count n, const Vector *y, const Vector *a, const Vector *b, Vector *dx) {
    FOR_EACH(i, n) {
        Vector values = y[i], gradients = a[i], others = b[i];
        FOR_EACH_OF_VECTOR(k) {
            Real sum = real(stored(real(gradients.of[k]) + real(others.of[k])));
            gradients.of[k] = stored(passed(real(values.of[k]), sum));
        }
        dx[i] = gradients;
    }
}

KERNEL relu_gradient(Count n, const Vector *y, const Vector *grad, Vector *dx) {
    FOR_EACH(i, n) {
        Vector values = y[i], gradients = grad[i];
        FOR_EACH_OF_VECTOR(k) gradients.of[k] = stored(passed(real(values.of[k]), real(gradients.of[k])));
        dx[i] = gradients;
    }
}

// Transposes a matrix [rows, columns]. Neighbouring threads write neighbouring elements, but read
// distant elements, so the kernel suits small matrices.
KERNEL transpose(Count rows, Count columns, const Stored *x, Stored *y) {
    FOR_EACH(i, rows * columns) y[i] = x[i % rows * columns + i / rows];
}
