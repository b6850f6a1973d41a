// Average pooling, with the bias and relu of a convolution before it.

// The sizes of a plane and of its windows.
#define WINDOWS Count height, Count width, Count kernel, Count stride, Count out_height, Count out_width

// The window of an output element: its plane and the index of its first element.
struct Window {
    Count plane, first;

    __device__ Window(Count out, WINDOWS) {
        Count column = out % out_width, above = out / out_width;
        Count row = above % out_height;
        plane = above / out_height;
        first = (plane * height + row * stride) * width + column * stride;
    }
};

// Adds up `value(offset)` over a window. Unrolled for 2×2, the usual size: a thread reads all four before it waits for one.
template <class Value> __device__ inline Real sum_over_window(Count width, Count kernel, Value value) {
    if (kernel == 2) return value(0) + value(1) + value(width) + value(width + 1);
    Real sum = 0;
    for (Count row = 0; row < kernel; row++)
        for (Count column = 0; column < kernel; column++) sum += value(row * width + column);
    return sum;
}

KERNEL avg_pool2d(Count n, WINDOWS, double share, const Stored *x, Stored *y) {
    FOR_EACH(out, n) {
        Window window(out, height, width, kernel, stride, out_height, out_width);
        const Stored *from = x + window.first;
        Real sum = sum_over_window(width, kernel, [&](Count place) { return real(from[place]); });
        y[out] = stored(sum * (Real)share);
    }
}

// The first window that contains a row or column. `end_of_windows` is the index after the last one.
__device__ inline Count first_window(Count at, Count kernel, Count stride) {
    return at < kernel ? 0 : (at - kernel) / stride + 1;
}

__device__ inline Count end_of_windows(Count at, Count stride, Count windows) {
    Count end = at / stride + 1;
    return end < windows ? end : windows;
}

// Each element of the input adds up the gradients of its windows, in the order of the windows.
KERNEL avg_pool2d_gradient(Count n, WINDOWS, double share, const Stored *grad, Stored *dx) {
    FOR_EACH(i, n) {
        Count column = i % width, row = i / width % height, plane = i / width / height;
        Count last_row = end_of_windows(row, stride, out_height);
        Count last_column = end_of_windows(column, stride, out_width);
        Real sum = 0;
        for (Count r = first_window(row, kernel, stride); r < last_row; r++)
            for (Count c = first_window(column, kernel, stride); c < last_column; c++)
                sum += real(grad[(plane * out_height + r) * out_width + c]) * (Real)share;
        dx[i] = stored(sum);
    }
}

// Pools max(z + bias, 0).
KERNEL bias_relu_pool(Count n, Count channels, WINDOWS, double share, const Stored *z, const Stored *bias, Stored *y) {
    FOR_EACH(out, n) {
        Window window(out, height, width, kernel, stride, out_height, out_width);
        const Stored *from = z + window.first;
        Real shift = real(bias[window.plane % channels]);
        Real sum = sum_over_window(width, kernel, [&](Count place) { return rectified(real(from[place]) + shift); });
        y[out] = stored(sum * (Real)share);
    }
}

// The window that contains a row or column, for windows that do not overlap.
__device__ inline Count window_of(Count at, Count kernel) { return kernel == 2 ? at / 2 : at / kernel; }

// Computes the gradient of z, for windows that do not overlap, and its sums by channel.
KERNEL bias_relu_pool_gradient(
    IMAGES, WINDOWS, double share, const Stored *z, const Stored *bias, const Stored *grad, Stored *dz, double *sums,
    Stored *rounded
) {
    Part part(images, channels, plane, parts);
    Real shift = real(bias[part.channel]), own = 0;
    FOR_EACH_OF(part, walk) {
        Count at = walk.at();
        Count column = window_of(walk.pixel % width, kernel), row = window_of(walk.pixel / width, kernel);
        Real through = 0;
        // Rows and columns at the end may be outside every window.
        if (row < out_height && column < out_width) {
            Count of_image = walk.image * channels + part.channel;
            Real upstream = real(grad[(of_image * out_height + row) * out_width + column]) * (Real)share;
            through = passed(real(z[at]) + shift, upstream);
        }
        dz[at] = stored(through);
        own += through;
    }
    leave_sum(part, own, sums, rounded);
}

// Computes the mean of each plane. Planes are small at the end of a network, so a thread reads a whole plane.
KERNEL global_avg_pool(Count n, Count pixels, const Stored *x, Stored *y) {
    FOR_EACH(plane, n) {
        double sum = 0;
        for (Count pixel = 0; pixel < pixels; pixel++) sum += real(x[plane * pixels + pixel]);
        y[plane] = stored(sum / pixels);
    }
}

KERNEL global_avg_pool_gradient(Count n, Count pixels, const Stored *grad, Stored *dx) {
    FOR_EACH(i, n) dx[i] = stored(real(grad[i / pixels]) / (Real)pixels);
}
