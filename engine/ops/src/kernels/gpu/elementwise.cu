// Elementwise kernels, and the transpose. `n` counts vectors.

// Stores a function of the elements at each place of vectors.
template <class Of, class... Vectors> __device__ inline Vector by_element(Of of, Vectors... operands) {
    Vector result;
    FOR_EACH_OF_VECTOR(k) result.of[k] = stored(of(real(operands.of[k])...));
    return result;
}

KERNEL sum(Count n, const Vector *x, const Vector *y, Vector *sum) {
    FOR_EACH(i, n) sum[i] = by_element([](Real x, Real y) { return x + y; }, x[i], y[i]);
}

KERNEL relu(Count n, const Vector *x, Vector *y) { FOR_EACH(i, n) y[i] = by_element(rectified, x[i]); }

KERNEL add_relu(Count n, const Vector *x, const Vector *y, Vector *sum) {
    FOR_EACH(i, n) sum[i] = by_element([](Real x, Real y) { return rectified(x + y); }, x[i], y[i]);
}

KERNEL relu_gradient(Count n, const Vector *y, const Vector *grad, Vector *dx) {
    FOR_EACH(i, n) dx[i] = by_element(passed, y[i], grad[i]);
}

// The sum is rounded as if it were stored.
KERNEL relu_gradient_of_sum(Count n, const Vector *y, const Vector *a, const Vector *b, Vector *dx) {
    FOR_EACH(i, n)
        dx[i] = by_element([](Real y, Real a, Real b) { return passed(y, real(stored(a + b))); }, y[i], a[i], b[i]);
}

// Transposes a matrix. Neighbouring threads read distant elements, so the kernel suits small matrices.
KERNEL transpose(Count rows, Count columns, const Stored *x, Stored *y) {
    FOR_EACH(i, rows * columns) y[i] = x[i % rows * columns + i / rows];
}
