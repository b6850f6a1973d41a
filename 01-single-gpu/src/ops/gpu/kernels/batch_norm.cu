// Batch normalisation: statistics, output, and the two halves of the gradient.

// Mean of a part's values, and the sum of squared distances from it. Distances are taken from a value of the part, so
// that nothing is lost however far the mean is from zero.
KERNEL moments_of_parts(
    Count images, Count channels, Count plane, Count parts, const Stored *x, double *mean, double *squares
) {
    Part part(images, channels, plane, parts);
    Real from = part.begin < part.end ? real(x[part.first()]) : 0, distances = 0, squared = 0;
    FOR_EACH_OF(part, walk) {
        Real distance = real(x[walk.at()]) - from;
        distances += distance;
        squared += distance * distance;
    }
    double first = block_sum(distances), second = block_sum(squared);
    if (threadIdx.x == 0) {
        double values = part.end > part.begin ? part.end - part.begin : 1;
        mean[part.place()] = from + first / values;
        // Rounding can take it below zero; a NaN stays one.
        second -= first * first / values;
        squares[part.place()] = second < 0 ? 0 : second;
    }
}

// The parts of each channel as one, in order (Chan, Golub, LeVeque 1983).
KERNEL merged_moments(
    Count images, Count channels, Count plane, Count parts, const double *means, const double *squares, double *mean,
    double *variance
) {
    FOR_EACH(channel, channels) {
        Count values = images * plane, share = (values + parts - 1) / parts;
        double before = 0, middle = 0, sum = 0;
        for (Count part = 0; part < parts && part * share < values; part++) {
            double count = values - part * share < share ? values - part * share : share;
            double distance = means[part * channels + channel] - middle;
            sum += squares[part * channels + channel] + distance * distance * (before * count / (before + count));
            before += count;
            middle += distance * (count / before);
        }
        mean[channel] = middle;
        variance[channel] = sum / values;
    }
}

__device__ inline double inverse_deviation(double variance, double epsilon) { return 1 / sqrt(variance + epsilon); }

// y = (x − mean) / √(variance + ε) · γ + β; γ and β are Real. The mean is rounded; what that takes away goes to the
// shift.
KERNEL normalise(
    Count images,
    Count channels,
    Count plane,
    Count parts,
    Count relu,
    double epsilon,
    const Stored *x,
    const Real *weight,
    const Real *bias,
    const double *mean,
    const double *variance,
    Stored *y
) {
    Part part(images, channels, plane, parts);
    Count channel = part.channel;
    double slope = weight[channel] * inverse_deviation(variance[channel], epsilon);
    Real centre = mean[channel], scale = slope;
    Real shift = bias[channel] + (centre - mean[channel]) * slope;
    FOR_EACH_OF(part, walk) {
        Count at = walk.at();
        Real normalised = (real(x[at]) - centre) * scale + shift;
        y[at] = stored(relu ? rectified(normalised) : normalised);
    }
}

// What of an element's gradient passes the relu, if there is one, whose output was `y`.
__device__ inline Real passed_at(Count at, Count relu, const Stored *y, const Stored *grad) {
    return relu ? passed(real(y[at]), real(grad[at])) : real(grad[at]);
}

// Σ dy and Σ dy · x̂ of each part, [parts, 2, channels], with dy what passes the relu, if there is one, whose output was
// `y`.
KERNEL gradient_sums_of_parts(
    Count images,
    Count channels,
    Count plane,
    Count parts,
    Count relu,
    double epsilon,
    const Stored *x,
    const Stored *y,
    const Stored *grad,
    const double *mean,
    const double *variance,
    double *sums
) {
    Part part(images, channels, plane, parts);
    Real centre = mean[part.channel], gradients = 0, products = 0;
    FOR_EACH_OF(part, walk) {
        Count at = walk.at();
        Real through = passed_at(at, relu, y, grad);
        gradients += through;
        products += through * (real(x[at]) - centre);
    }
    double sum = block_sum(gradients), product = block_sum(products);
    if (threadIdx.x == 0) {
        double *of_bias = sums + part.number * 2 * channels, *of_weight = of_bias + channels;
        of_bias[part.channel] = sum;
        // What rounding took from the mean belongs to every product.
        product += (centre - mean[part.channel]) * sum;
        of_weight[part.channel] = product * inverse_deviation(variance[part.channel], epsilon);
    }
}

// dx = γ / √(variance + ε) · (dy − Σdy / n − x̂ · Σ(dy·x̂) / n); `share` is 1 / n, or 0 where statistics were given, and
// `sums` are [2, channels].
KERNEL input_gradient(
    Count images,
    Count channels,
    Count plane,
    Count parts,
    Count relu,
    double epsilon,
    double share,
    const Stored *x,
    const Stored *y,
    const Stored *grad,
    const Real *weight,
    const double *mean,
    const double *variance,
    const double *sums,
    Stored *dx
) {
    Part part(images, channels, plane, parts);
    Count channel = part.channel;
    double inverse = inverse_deviation(variance[channel], epsilon);
    double pull = sums[channels + channel] * share * inverse;
    Real centre = mean[channel], pulled = pull;
    Real push = sums[channel] * share + (centre - mean[channel]) * pull;
    Real slope = weight[channel] * inverse;
    FOR_EACH_OF(part, walk) {
        Count at = walk.at();
        Real through = passed_at(at, relu, y, grad);
        dx[at] = stored((through - push - (real(x[at]) - centre) * pulled) * slope);
    }
}
