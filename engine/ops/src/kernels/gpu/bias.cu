// A bias for each channel, an optional relu after it, and the gradients of both.

// ANCHOR: add_bias
KERNEL add_bias(Count n, Count channels, Count plane, Count relu, const Stored *x, const Stored *bias, Stored *y) {
    FOR_EACH(i, n) {
        Real sum = real(x[i]) + real(bias[i / plane % channels]);
        y[i] = stored(relu ? rectified(sum) : sum);
    }
}
// ANCHOR_END: add_bias

KERNEL channel_sums(IMAGES, const Stored *grad, double *sums, Stored *rounded) {
    Part part(images, channels, plane, parts);
    Real own = 0;
    FOR_EACH_OF(part, walk) own += real(grad[walk.at()]);
    leave_sum(part, own, sums, rounded);
}

// Computes the gradient that passes the relu with output `y`, and its sums by channel.
KERNEL relu_gradient_and_channel_sums(
    IMAGES, const Stored *y, const Stored *grad, Stored *dz, double *sums, Stored *rounded
) {
    Part part(images, channels, plane, parts);
    Real own = 0;
    FOR_EACH_OF(part, walk) {
        Count at = walk.at();
        Real through = passed(real(y[at]), real(grad[at]));
        dz[at] = stored(through);
        own += through;
    }
    leave_sum(part, own, sums, rounded);
}

// Adds up the rows of sums [parts, n] into the first row, with one block for each of the n.
KERNEL merged_sums(Count n, Count parts, double *sums, Stored *rounded) {
    double sum = 0;
    FOR_EACH_PART(part, parts) sum += sums[part * n + blockIdx.x];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        rounded[blockIdx.x] = stored(sum);
    }
}
