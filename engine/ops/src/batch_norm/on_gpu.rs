//! Batch normalisation on a GPU: the same pieces as kernels. Statistics and sums stay on the GPU.

use candle_core::{CudaStorage, DType, Result, Storage, Tensor};

use super::backward_blocks::Tensors;
use super::statistics::Statistics;
use crate::backward::record;
use crate::element::computed_in;
use crate::gpu::{self, Channels, Launch, Operand, PartialSums, Source, Totals, alloc, on_gpu};

/// Returns the images contiguous, at an address from which the kernels can read whole vectors.
pub(super) fn aligned(images: &Tensor) -> Result<Tensor> {
    gpu::aligned(images, Channels::of(images.shape())?.vector())
}

fn all_aligned(Tensors { x, output, grad }: &Tensors) -> Result<Tensors> {
    let output = output.as_ref().map(aligned).transpose()?;
    Ok(Tensors { x: aligned(x)?, output, grad: aligned(grad)? })
}

/// Converts one number per channel to f64, contiguous, as the kernels expect it.
fn in_f64(of_channels: &Tensor) -> Result<Tensor> {
    of_channels.detach().to_dtype(DType::F64)?.contiguous()
}

/// Starts the launch of a kernel whose first arguments are the sizes of images `x`.
fn launch<'a>(kernel: &'static str, x: Operand<'a>, sizes: Channels) -> Launch<'a> {
    let launch = Launch::new(x.gpu(), Source::BatchNorm, kernel, x.dtype());
    launch.by_vectors(sizes.vector()).channels(sizes)
}

/// Implements [`Statistics::of`] on a GPU.
pub(super) fn statistics(x: &Tensor) -> Result<Statistics> {
    let sizes = Channels::of(x.shape())?;
    let (parts, channels) = (sizes.blocks(), sizes.channels);
    let (mean, variance) = on_gpu([&aligned(x)?], |[x]| {
        let alloc = |n| alloc(x.gpu(), n, DType::F64);
        let (mut means, mut squares) = (alloc(parts)?, alloc(parts)?);
        launch("moments_of_parts", x, sizes)
            .vectors(x, sizes.elements())
            .result(&mut means)
            .result(&mut squares)
            .run(parts)?;
        if sizes.parts() == 1 {
            // A single part is the whole channel, so its moments are the channel's mean and
            // variance.
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

/// Normalises by given statistics.
pub(super) struct BatchNorm {
    statistics: Statistics,
    /// 1 / n when the gradient flows through the batch's own statistics; 0 when they are constants.
    share: f64,
    epsilon: f64,
    relu: bool,
}

impl BatchNorm {
    pub(super) fn new(
        statistics: &Statistics,
        of_batch: bool,
        epsilon: f64,
        relu: bool,
    ) -> Result<Self> {
        let count = statistics.count;
        let (mean, variance) = (in_f64(&statistics.mean)?, in_f64(&statistics.variance)?);
        let share = if of_batch { 1.0 / count as f64 } else { 0.0 };
        Ok(Self { statistics: Statistics { mean, variance, count }, share, epsilon, relu })
    }

    pub(super) fn apply(self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let (x, weight, bias) = (aligned(x)?, weight.contiguous()?, bias.contiguous()?);
        let y = Storage::Cuda(self.forward(&x, &weight, &bias)?);
        let (of_x, of_weight) = (x.clone(), weight.clone());
        record("batch_norm", y, x.shape(), [&x, &weight, &bias], move |y, dy| {
            self.backward(&of_x, &of_weight, y, dy)
        })
    }

    fn forward(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<CudaStorage> {
        let sizes = Channels::of(x.shape())?;
        let (n, channels) = (sizes.elements(), sizes.channels);
        let wide = computed_in(x.dtype());
        let Statistics { mean, variance, .. } = &self.statistics;
        on_gpu([x, weight, bias, mean, variance], |[x, weight, bias, mean, variance]| {
            launch("normalise", x, sizes)
                .flag(self.relu)
                .number(self.epsilon)
                .vectors(x, n)
                .memory_as(wide, weight, channels)
                .memory_as(wide, bias, channels)
                .memory_as(DType::F64, mean, channels)
                .memory_as(DType::F64, variance, channels)
                .compute(n, sizes.blocks())
        })
    }

    /// Computes the gradients of the input if needed, of the weight, and of the bias.
    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let tensors = all_aligned(&Tensors::new(x, self.relu.then_some(y), grad)?)?;
        let (statistics, share, epsilon) = (&self.statistics, self.share, self.epsilon);
        let Totals { exact, rounded } = sums(&tensors, statistics, epsilon)?;
        let dx = if x.track_op() {
            let constants = Constants { weight, statistics, sums: &exact, share, epsilon };
            Some(images_gradient(&tensors, &constants)?)
        } else {
            None
        };
        Ok([dx, Some(rounded.get(1)?), Some(rounded.get(0)?)])
    }
}

impl<'a> Launch<'a> {
    /// Adds the input, the output and the output's gradient to the launch. A kernel without a relu
    /// does not read the output.
    fn images(self, images: [Operand<'a>; 3], sizes: Channels) -> Self {
        images.into_iter().fold(self, |launch, images| launch.vectors(images, sizes.elements()))
    }
}

/// Computes Σ dy and Σ dy·x̂ of each channel, `[2, C]`, for aligned tensors.
fn sums(tensors: &Tensors, statistics: &Statistics, epsilon: f64) -> Result<Totals<Tensor>> {
    let Tensors { x, output, grad } = tensors;
    let sizes = Channels::of(x.shape())?;
    let (parts, channels) = (sizes.parts(), sizes.channels);
    let (mean, variance) = (in_f64(&statistics.mean)?, in_f64(&statistics.variance)?);
    let operands = [x, output.as_ref().unwrap_or(x), grad, &mean, &variance];
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

/// Computes the tensor of [`GradientSums::of`](super::GradientSums::of).
pub(super) fn gradient_sums(
    tensors: &Tensors,
    statistics: &Statistics,
    epsilon: f64,
) -> Result<Tensor> {
    Ok(sums(&all_aligned(tensors)?, statistics, epsilon)?.exact)
}

/// The arguments of the images' gradient that do not have the shape of the images.
pub(super) struct Constants<'a> {
    pub(super) weight: &'a Tensor,
    pub(super) statistics: &'a Statistics,
    /// Σ dy and Σ dy·x̂ of each channel, `[2, C]`.
    pub(super) sums: &'a Tensor,
    /// 1 / n, where n is the number of values of the statistics; 0 when the statistics were given.
    pub(super) share: f64,
    pub(super) epsilon: f64,
}

/// Implements [`input_gradient`](super::input_gradient) on a GPU.
pub(super) fn input_gradient(tensors: &Tensors, constants: &Constants<'_>) -> Result<Tensor> {
    images_gradient(&all_aligned(tensors)?, constants)
}

/// Computes the images' gradient, for aligned tensors.
fn images_gradient(tensors: &Tensors, constants: &Constants<'_>) -> Result<Tensor> {
    let Tensors { x, output, grad } = tensors;
    let Constants { weight, statistics, sums, share, epsilon } = *constants;
    let sizes = Channels::of(x.shape())?;
    let (n, channels) = (sizes.elements(), sizes.channels);
    let wide = computed_in(x.dtype());
    let weight = weight.detach().to_dtype(wide)?.contiguous()?;
    let [mean, variance] = [in_f64(&statistics.mean)?, in_f64(&statistics.variance)?];
    let sums = in_f64(sums)?;
    let operands = [x, output.as_ref().unwrap_or(x), grad, &weight, &mean, &variance, &sums];
    let dx = on_gpu(operands, |[x, y, grad, weight, mean, variance, sums]| {
        launch("input_gradient", x, sizes)
            .flag(output.is_some())
            .number(epsilon)
            .number(share)
            .images([x, y, grad], sizes)
            .memory_as(wide, weight, channels)
            .memory_as(DType::F64, mean, channels)
            .memory_as(DType::F64, variance, channels)
            .memory_as(DType::F64, sums, 2 * channels)
            .compute(n, sizes.blocks())
    })?;
    Ok(gpu::tensor(dx, x.shape()))
}
