//! Batch normalisation on a GPU: the same pieces as kernels. Statistics and sums stay on the GPU.
//!
//! All images are contiguous and begin where a vector may begin.

use candle_core::{CudaStorage, DType, Result, Tensor};

use super::OutputGradient;
use super::statistics::Statistics;
use crate::element::computed_in;
use crate::gpu::{self, Channels, Launch, Operand, PartialSums, Source, Totals, alloc, on_gpu};

/// Starts the launch of a kernel whose first arguments are the sizes of images `x`.
fn launch<'a>(kernel: &'static str, x: Operand<'a>, sizes: Channels) -> Launch<'a> {
    let launch = Launch::new(x.gpu(), Source::BatchNorm, kernel, x.dtype());
    launch.by_vectors(sizes.vector()).channels(sizes)
}

/// Converts statistics to f64, contiguous, as the kernels expect them.
pub(super) fn in_f64(statistics: &Statistics) -> Result<Statistics> {
    let values = |of: &Tensor| of.detach().to_dtype(DType::F64)?.contiguous();
    let (mean, variance) = (values(&statistics.mean)?, values(&statistics.variance)?);
    Ok(Statistics { mean, variance, count: statistics.count })
}

/// Implements [`Statistics::of`] on a GPU.
pub(super) fn statistics(x: &Tensor) -> Result<Statistics> {
    let sizes = Channels::of(x.shape())?;
    let (parts, channels) = (sizes.blocks(), sizes.channels);
    let (mean, variance) = on_gpu([x], |[x]| {
        let alloc = |n| alloc(x.gpu(), n, DType::F64);
        let (mut means, mut squares) = (alloc(parts)?, alloc(parts)?);
        launch("moments_of_parts", x, sizes)
            .vectors(x, sizes.elements())
            .result(&mut means)
            .result(&mut squares)
            .run(parts)?;
        if sizes.parts() == 1 {
            // A single part is the whole channel.
            return Ok((means, squares));
        }
        let (mut mean, mut variance) = (alloc(channels)?, alloc(channels)?);
        launch("merged_moments", x, sizes)
            .memory_as(DType::F64, Operand::whole(&means, parts), parts)
            .memory_as(DType::F64, Operand::whole(&squares, parts), parts)
            .result(&mut mean)
            .result(&mut variance)
            .run(channels)?;
        Ok((mean, variance))
    })?;
    let [mean, variance] = [mean, variance].map(|values| gpu::tensor(values, channels));
    Ok(Statistics { mean, variance, count: sizes.images * sizes.plane })
}

/// Normalises images by statistics in f64. The tensors are images, weight and bias.
pub(super) fn normalise(
    [x, weight, bias]: [&Tensor; 3],
    Statistics { mean, variance, .. }: &Statistics,
    epsilon: f64,
    relu: bool,
) -> Result<CudaStorage> {
    let sizes = Channels::of(x.shape())?;
    let (n, channels, wide) = (sizes.elements(), sizes.channels, computed_in(x.dtype()));
    on_gpu([x, weight, bias, mean, variance], |[x, weight, bias, mean, variance]| {
        launch("normalise", x, sizes)
            .flag(relu)
            .number(epsilon)
            .vectors(x, n)
            .memory_as(wide, weight, channels)
            .memory_as(wide, bias, channels)
            .memory_as(DType::F64, mean, channels)
            .memory_as(DType::F64, variance, channels)
            .compute(n, sizes.blocks())
    })
}

impl<'a> Launch<'a> {
    /// Adds the input, the output, which only kernels with a relu read, and the output's gradient.
    fn images(self, images: [Operand<'a>; 3], sizes: Channels) -> Self {
        images.into_iter().fold(self, |launch, images| launch.vectors(images, sizes.elements()))
    }
}

/// Computes Σ dy and Σ dy·x̂ of each channel, `[2, C]`.
pub(super) fn gradient_sums(
    OutputGradient { x, output, grad, .. }: &OutputGradient,
    statistics: &Statistics,
    epsilon: f64,
) -> Result<Totals<Tensor>> {
    let sizes = Channels::of(x.shape())?;
    let (parts, channels) = (sizes.parts(), sizes.channels);
    let Statistics { mean, variance, .. } = &in_f64(statistics)?;
    let operands = [x, output.as_ref().unwrap_or(x), grad, mean, variance];
    let Totals { exact, rounded } = on_gpu(operands, |[x, y, grad, mean, variance]| {
        let wide = computed_in(x.dtype());
        let mut sums = PartialSums::alloc(x.gpu(), parts, 2 * channels, wide)?;
        launch("gradient_sums_of_parts", x, sizes)
            .flag(output.is_some())
            .number(epsilon)
            .images([x, y, grad], sizes)
            .memory_as(DType::F64, mean, channels)
            .memory_as(DType::F64, variance, channels)
            .sums(&mut sums)
            .run(sizes.blocks())?;
        sums.totals()
    })?;
    let [exact, rounded] = [exact, rounded].map(|sums| gpu::tensor(sums, (2, channels)));
    Ok(Totals { exact, rounded })
}

/// Computes the images' gradient from `sums`, `[2, C]`. `count` is the number of values of the
/// statistics, or `None` when the statistics are constants.
pub(super) fn input_gradient(
    OutputGradient { x, output, grad, .. }: &OutputGradient,
    weight: &Tensor,
    statistics: &Statistics,
    sums: &Tensor,
    count: Option<usize>,
    epsilon: f64,
) -> Result<Tensor> {
    let sizes = Channels::of(x.shape())?;
    let (n, channels, wide) = (sizes.elements(), sizes.channels, computed_in(x.dtype()));
    let weight = weight.detach().to_dtype(wide)?.contiguous()?;
    let Statistics { mean, variance, .. } = &in_f64(statistics)?;
    let sums = sums.detach().contiguous()?;
    let operands = [x, output.as_ref().unwrap_or(x), grad, &weight, mean, variance, &sums];
    let dx = on_gpu(operands, |[x, y, grad, weight, mean, variance, sums]| {
        launch("input_gradient", x, sizes)
            .flag(output.is_some())
            .number(epsilon)
            .number(count.map_or(0.0, |count| 1.0 / count as f64))
            .images([x, y, grad], sizes)
            .memory_as(wide, weight, channels)
            .memory_as(DType::F64, mean, channels)
            .memory_as(DType::F64, variance, channels)
            .memory_as(DType::F64, sums, 2 * channels)
            .compute(n, sizes.blocks())
    })?;
    Ok(gpu::tensor(dx, x.shape()))
}
