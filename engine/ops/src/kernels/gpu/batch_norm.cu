// Batch normalisation: statistics, output, and the two halves of the gradient. `plane` counts vectors.

// Computes the mean of a part's values and the sum of squared distances from the mean, or the variance if the part is the
// whole channel. Distances are taken from a finite value of the part, so no digits are lost far from zero.
KERNEL moments_of_parts(IMAGES, const Vector *x, double *mean, double *squares) {
    Part part(images, channels, plane, parts);
    Real from = part.begin < part.end ? real(x[part.first()].of[0]) : 0, distances = 0, squared = 0;
    if (!is_finite(from)) from = 0;
    FOR_EACH_OF(part, walk) {
        Vector values = x[walk.at()];
        FOR_EACH_OF_VECTOR(k) {
            Real distance = real(values.of[k]) - from;
            distances += distance;
            squared += distance * distance;
        }
    }
    Sums<2> sums = block_sums(Sums<2>{{distances, squared}});
    if (threadIdx.x == 0) {
        double first = sums.of[0], second = sums.of[1];
        double values = part.end > part.begin ? (part.end - part.begin) * VECTOR : 1;
        mean[part.place()] = from + first / values;
        // Rounding can make the sum negative. A NaN stays a NaN.
        second -= first * first / values;
        if (second < 0) second = 0;
        squares[part.place()] = part.is_whole() ? second / values : second;
    }
}

// If there are values, no part is empty.
__device__ inline double values_of_part(Count part, Count share, Count vectors) {
    Count left = vectors - part * share;
    return (double)(left < share ? left : share) * VECTOR;
}

// Merges the parts of each channel, one block per channel. The variance is that within and between the parts.
KERNEL merged_moments(IMAGES, const double *means, const double *squares, double *mean, double *variance) {
    Count channel = blockIdx.x, vectors = images * plane, share = (vectors + parts - 1) / parts;
    double values = (double)vectors * VECTOR, sum = 0, spread = 0;
    FOR_EACH_PART(part, parts) sum += means[part * channels + channel] * values_of_part(part, share, vectors);
    double middle = block_sum(sum) / values;
    FOR_EACH_PART(part, parts) {
        double distance = means[part * channels + channel] - middle;
        spread += squares[part * channels + channel] + distance * distance * values_of_part(part, share, vectors);
    }
    spread = block_sum(spread);
    if (threadIdx.x == 0) {
        mean[channel] = middle;
        variance[channel] = spread / values;
    }
}

__device__ inline double inverse_deviation(double variance, double epsilon) { return 1 / sqrt(variance + epsilon); }

// Returns `factor` times the rounding error of a mean, or 0 if one is infinite: zero times infinity would be a NaN.
__device__ inline double correction(Real centre, double mean, double factor) {
    return is_finite(centre) && is_finite(factor) ? (centre - mean) * factor : 0;
}

// The line of a channel's values: (x − centre) · scale + shift.
struct Line {
    Real centre, scale, shift;
};

// Computes y = (x − mean) / √(variance + ε) · γ + β. The mean is rounded to Real, and the shift takes the rounding error.
KERNEL normalise(
    IMAGES, Count relu, double epsilon, const Vector *x, const Real *weight, const Real *bias, const double *mean,
    const double *variance, Vector *y
) {
    Part part(images, channels, plane, parts);
    // One thread computes the line for all threads, because many GPUs are slow in double.
    __shared__ Line of_channel;
    if (threadIdx.x == 0) {
        Count channel = part.channel;
        double slope = weight[channel] * inverse_deviation(variance[channel], epsilon);
        of_channel.centre = mean[channel];
        of_channel.scale = slope;
        of_channel.shift = bias[channel] + correction(of_channel.centre, mean[channel], slope);
    }
    __syncthreads();
    Line line = of_channel;
    FOR_EACH_OF(part, walk) {
        Count at = walk.at();
        Vector values = x[at];
        FOR_EACH_OF_VECTOR(k) {
            Real normalised = (real(values.of[k]) - line.centre) * line.scale + line.shift;
            values.of[k] = stored(relu ? rectified(normalised) : normalised);
        }
        y[at] = values;
    }
}

// The gradients of one vector of the output, or those that pass the relu with output `y`.
struct Passed {
    Real of[VECTOR];

    __device__ Passed(Count at, Count relu, const Vector *y, const Vector *grad) {
        Vector gradients = grad[at], outputs = relu ? y[at] : gradients;
        FOR_EACH_OF_VECTOR(k)
            of[k] = relu ? passed(real(outputs.of[k]), real(gradients.of[k])) : real(gradients.of[k]);
    }
};

// Computes Σ dy and Σ dy · x̂ of each part, [parts, 2, channels], where dy is the gradient that passes the relu, if there is
// one. If a part is a whole channel, the sums are also rounded as the gradients of β and γ.
KERNEL gradient_sums_of_parts(
    IMAGES, Count relu, double epsilon, const Vector *x, const Vector *y, const Vector *grad, const double *mean,
    const double *variance, double *sums, Real *rounded
) {
    Part part(images, channels, plane, parts);
    Real centre = mean[part.channel], gradients = 0, products = 0;
    FOR_EACH_OF(part, walk) {
        Count at = walk.at();
        Vector values = x[at];
        Passed through(at, relu, y, grad);
        FOR_EACH_OF_VECTOR(k) {
            gradients += through.of[k];
            products += through.of[k] * (real(values.of[k]) - centre);
        }
    }
    Sums<2> of_part = block_sums(Sums<2>{{gradients, products}});
    if (threadIdx.x == 0) {
        double sum = of_part.of[0], product = of_part.of[1];
        double *of_bias = sums + part.number * 2 * channels, *of_weight = of_bias + channels;
        of_bias[part.channel] = sum;
        // The rounding error of the mean is in every product.
        product += correction(centre, mean[part.channel], sum);
        product *= inverse_deviation(variance[part.channel], epsilon);
        of_weight[part.channel] = product;
        if (part.is_whole()) {
            rounded[part.channel] = sum;
            rounded[channels + part.channel] = product;
        }
    }
}

// The line of a channel's gradients: (dy − push − (x − centre) · pull) · slope.
struct GradientLine {
    Real centre, push, pull, slope;
};

// Computes dx = γ / √(variance + ε) · (dy − Σdy / n − x̂ · Σ(dy·x̂) / n). `share` is 1 / n, or 0 for given statistics, which
// are constants: the terms with sums are left out, because zero times a NaN or an infinity would be a NaN.
KERNEL input_gradient(
    IMAGES, Count relu, double epsilon, double share, const Vector *x, const Vector *y, const Vector *grad,
    const Real *weight, const double *mean, const double *variance, const double *sums, Vector *dx
) {
    Part part(images, channels, plane, parts);
    bool constant = share == 0;
    __shared__ GradientLine of_channel;
    if (threadIdx.x == 0) {
        Count channel = part.channel;
        double inverse = inverse_deviation(variance[channel], epsilon);
        double pull = constant ? 0 : sums[channels + channel] * share * inverse;
        double push = constant ? 0 : sums[channel] * share;
        of_channel.centre = mean[channel];
        of_channel.pull = pull;
        of_channel.push = push + correction(of_channel.centre, mean[channel], pull);
        of_channel.slope = weight[channel] * inverse;
    }
    __syncthreads();
    GradientLine line = of_channel;
    FOR_EACH_OF(part, walk) {
        Count at = walk.at();
        Vector values = x[at];
        Passed through(at, relu, y, grad);
        FOR_EACH_OF_VECTOR(k) {
            Real pulled = constant ? 0 : (real(values.of[k]) - line.centre) * line.pull;
            values.of[k] = stored((through.of[k] - line.push - pulled) * line.slope);
        }
        dx[at] = values;
    }
}
