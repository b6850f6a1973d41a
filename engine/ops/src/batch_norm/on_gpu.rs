//! Batch normalisation on a GPU: the same pieces, as kernels. Statistics and sums stay there.

use candle_core::{CpuStorage, CudaStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};

use super::backward_blocks::Tensors;
use super::gradient::GradientSums;
use super::planes::Planes;
use super::statistics::Statistics;
use crate::backward::apply3;
use crate::element::computed_in;
use crate::gpu::batch_norm::{Images, Moments, Slopes};
use crate::gpu::bias::Merged;
use crate::gpu::blocks::Channels;
use crate::gpu::{self, Operand, on_gpu};

fn channels(images: &Shape) -> Result<Channels> {
    let Planes { batch, channels, plane } = Planes::new(images)?;
    Ok(Channels { images: batch, channels, plane })
}

/// Images, from where kernels can read them.
pub(super) fn aligned(images: &Tensor) -> Result<Tensor> {
    gpu::aligned(images, channels(images.shape())?.vector())
}

/// Numbers of channels, as kernels take them.
fn in_f64(of_channels: &Tensor) -> Result<Tensor> {
    of_channels.detach().to_dtype(DType::F64)?.contiguous()
}

/// [`Statistics::of`].
pub(super) fn statistics(x: &Tensor) -> Result<Statistics> {
    let sizes = channels(x.shape())?;
    let x = aligned(x)?;
    let (mean, variance) = on_gpu([&x], |gpu, [x]| gpu::batch_norm::moments(gpu, sizes, x))?;
    let [mean, variance] = [mean, variance].map(|values| gpu::tensor(values, sizes.channels));
    Ok(Statistics { mean, variance, count: sizes.images * sizes.plane })
}

/// One application: normalises by given statistics.
pub(super) struct Normalise {
    statistics: Statistics,
    /// 1 / n where the statistics are the batch's own, and so move with it; else 0.
    share: f64,
    epsilon: f64,
    relu: bool,
}

impl Normalise {
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
        apply3(&aligned(x)?, &weight.contiguous()?, &bias.contiguous()?, self)
    }
}

impl CustomOp3 for Normalise {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        bail!("batch_norm: the CPU has an operation of its own")
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let sizes = channels(x_layout.shape())?;
        let parameters = [Operand::new(weight, weight_layout)?, Operand::new(bias, bias_layout)?];
        let x = Operand::new(x, x_layout)?;
        let (epsilon, Statistics { mean, variance, .. }) = (self.epsilon, &self.statistics);
        let y = on_gpu([mean, variance], |gpu, [mean, variance]| {
            let moments = Moments { mean, variance, epsilon };
            gpu::batch_norm::normalise(gpu, sizes, x, parameters, moments, self.relu)
        })?;
        Ok((y, x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _bias: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let tensors = all_aligned(&Tensors::new(x, self.relu.then_some(y), grad)?)?;
        let (statistics, share, epsilon) = (&self.statistics, self.share, self.epsilon);
        let Merged { exact, rounded } = sums(&tensors, statistics, epsilon)?;
        let dx = if x.track_op() {
            let constants = Constants { weight, statistics, sums: &exact, share, epsilon };
            Some(images_gradient(&tensors, &constants)?)
        } else {
            None
        };
        Ok((dx, Some(rounded.get(1)?), Some(rounded.get(0)?)))
    }
}

fn all_aligned(Tensors { x, output, grad }: &Tensors) -> Result<Tensors> {
    let output = output.as_ref().map(aligned).transpose()?;
    Ok(Tensors { x: aligned(x)?, output, grad: aligned(grad)? })
}

/// Σ dy and Σ dy·x̂ of each channel, `[2, C]`.
fn sums(tensors: &Tensors, statistics: &Statistics, epsilon: f64) -> Result<Merged<Tensor>> {
    let Tensors { x, output, grad } = tensors;
    let sizes = channels(x.shape())?;
    let (mean, variance) = (in_f64(&statistics.mean)?, in_f64(&statistics.variance)?);
    let operands = [x, output.as_ref().unwrap_or(x), grad, &mean, &variance];
    let Merged { exact, rounded } = on_gpu(operands, |gpu, [x, y, grad, mean, variance]| {
        let images = Images { x, output: output.is_some().then_some(y), grad };
        let moments = Moments { mean, variance, epsilon };
        gpu::batch_norm::gradient_sums(gpu, sizes, &images, moments)
    })?;
    let [exact, rounded] = [exact, rounded].map(|sums| gpu::tensor(sums, (2, sizes.channels)));
    Ok(Merged { exact, rounded })
}

/// [`GradientSums::of`].
pub(super) fn gradient_sums(
    tensors: &Tensors,
    statistics: &Statistics,
    epsilon: f64,
) -> Result<GradientSums> {
    GradientSums::new(sums(&all_aligned(tensors)?, statistics, epsilon)?.exact)
}

/// What the images' gradient is made of besides them.
pub(super) struct Constants<'a> {
    pub(super) weight: &'a Tensor,
    pub(super) statistics: &'a Statistics,
    /// Σ dy and then Σ dy·x̂ of each channel, `[2, C]`.
    pub(super) sums: &'a Tensor,
    /// 1 / n of what the statistics were taken over; 0 where they were given.
    pub(super) share: f64,
    pub(super) epsilon: f64,
}

/// [`input_gradient`](super::input_gradient).
pub(super) fn input_gradient(tensors: &Tensors, constants: &Constants<'_>) -> Result<Tensor> {
    images_gradient(&all_aligned(tensors)?, constants)
}

fn images_gradient(tensors: &Tensors, constants: &Constants<'_>) -> Result<Tensor> {
    let Tensors { x, output, grad } = tensors;
    let Constants { weight, statistics, sums, share, epsilon } = *constants;
    let sizes = channels(x.shape())?;
    let y = output.as_ref().unwrap_or(x);
    let weight = weight.detach().to_dtype(computed_in(x.dtype()))?.contiguous()?;
    let [mean, variance] = [in_f64(&statistics.mean)?, in_f64(&statistics.variance)?];
    let sums = in_f64(sums)?;
    let operands = [x, y, grad, &weight, &mean, &variance, &sums];
    let dx = on_gpu(operands, |gpu, [x, y, grad, weight, mean, variance, sums]| {
        let images = Images { x, output: output.is_some().then_some(y), grad };
        let moments = Moments { mean, variance, epsilon };
        let slopes = Slopes { weight, moments, sums, share };
        gpu::batch_norm::input_gradient(gpu, sizes, &images, slopes)
    })?;
    Ok(gpu::tensor(dx, x.shape()))
}
