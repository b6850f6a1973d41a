// The sum of two tensors. `n` counts vectors.

KERNEL sum(Count n, const Vector *x, const Vector *y, Vector *sum) {
    FOR_EACH(i, n) {
        Vector values = x[i], others = y[i];
        FOR_EACH_OF_VECTOR(k) values.of[k] = stored(real(values.of[k]) + real(others.of[k]));
        sum[i] = values;
    }
}
