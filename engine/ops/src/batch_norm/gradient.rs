//! The gradients of a batch normalisation, in two halves, by the closed form of Ioffe and Szegedy.
//!
//! Let x̂ = (x − mean) / √(variance + ε), n the number of values in a channel, and dy the gradient that passes the relu. The
//! sums are the gradients of β and γ. When the statistics are given, the two terms with sums are absent:
//!
//! ```text
//! first half, sums over a channel:  Σdy   and   Σ dy·x̂
//! second half, by element:          dx = γ / √(variance + ε) · (dy − Σdy / n − x̂ · Σ(dy·x̂) / n)
//! ```

use candle_core::{DType, Device, Result, Tensor, bail};

use super::loops::Sums;
use super::statistics::{Statistics, check_channels};
use super::{contiguous, on_cpu, sizes, widened};
use crate::kernels::gpu;

/// The gradient of a batch norm's output, `[B, C, H, W]`, with the images that both halves of backward also read.
#[derive(Clone, Debug)]
pub struct OutputGradient {
    pub(super) x: Tensor,
    /// The output, if a relu follows.
    pub(super) output: Option<Tensor>,
    pub(super) grad: Tensor,
    dtype: DType,
}

impl OutputGradient {
    /// Takes the output's gradient and the input `x`. A batch norm with a relu also needs its `output`, because the relu
    /// passes no gradient where the output is zero. Fails when the shapes or types of the three differ.
    pub fn new(x: &Tensor, output: Option<&Tensor>, grad: &Tensor) -> Result<Self> {
        let kind = |images: &Tensor| (images.dtype(), images.dims().to_vec());
        let (dtype, dims) = kind(x);
        for (found, other) in output.into_iter().chain([grad]).map(kind) {
            if (found, &other) != (dtype, &dims) {
                bail!(
                    "batch_norm: a gradient of images {dtype:?} {dims:?} cannot be taken with {found:?} {other:?}"
                );
            }
        }
        sizes(x)?;
        let images = |images: &Tensor| contiguous(&widened(images)?);
        let output = output.map(images).transpose()?;
        Ok(Self { x: images(x)?, output, grad: images(grad)?, dtype: x.dtype() })
    }

    /// Computes the first half of backward, `[2, C]` in f64: Σ dy of each channel, which is the gradient of the bias, then Σ
    /// dy·x̂ of each, the gradient of the weight. Fails when the statistics have another number of channels.
    pub fn sums(&self, statistics: &Statistics, epsilon: f64) -> Result<Tensor> {
        statistics.check(self.x.dim(1)?)?;
        if self.x.device().is_cuda() {
            let (moments, relu) = (statistics.moments(), self.output.is_some());
            let [exact, _] = gpu::gradient_sums(self.images(), moments, epsilon, relu)?;
            return Ok(exact);
        }
        let moments = statistics.to_moments()?;
        let (_, sums) = on_cpu::gradients(self, &moments, epsilon, None, None, None)?;
        let both = sums.iter().map(|of| of.bias).chain(sums.iter().map(|of| of.weight));
        Tensor::from_iter(both, &Device::Cpu)?.reshape((2, ()))
    }

    /// Computes the second half of backward: the gradient of the input. `weight` is `[C]`, and `sums` are the sums of all ranks.
    /// `statistics` describe the same batch: `statistics.count` is the n that divides the sums. Fails when the shapes or types
    /// do not fit, or on a type other than f32, f64 and bf16.
    pub fn of_input(
        &self,
        weight: &Tensor,
        statistics: &Statistics,
        sums: &Tensor,
        epsilon: f64,
    ) -> Result<Tensor> {
        let channels = self.x.dim(1)?;
        statistics.check(channels)?;
        check_channels("weight", weight, channels)?;
        if sums.dims() != [2, channels] || sums.dtype() != DType::F64 {
            let (dtype, dims) = (sums.dtype(), sums.dims());
            bail!(
                "batch_norm: {channels} channels need gradient sums F64 [2, {channels}], got {dtype:?} {dims:?}"
            );
        }
        let count = Some(statistics.count);
        if self.x.device().is_cuda() {
            let ([mean, variance], relu) = (statistics.moments(), self.output.is_some());
            let of_channels = [mean, variance, sums];
            return gpu::input_gradient(self.images(), weight, of_channels, count, epsilon, relu);
        }
        let weight: Vec<f64> = weight.detach().to_dtype(DType::F64)?.to_vec1()?;
        let of_channels = sums.get(0)?.to_vec1()?.into_iter().zip(sums.get(1)?.to_vec1()?);
        let sums: Vec<_> = of_channels.map(|(bias, weight)| Sums { bias, weight }).collect();
        let (moments, sums) = (statistics.to_moments()?, Some(&sums[..]));
        let (dx, _) = on_cpu::gradients(self, &moments, epsilon, sums, Some(&weight), count)?;
        dx.expect("a gradient, as there is a weight").to_dtype(self.dtype)
    }

    /// The input, the output, which only a batch norm with a relu reads, and its gradient.
    pub(super) fn images(&self) -> [&Tensor; 3] {
        [&self.x, self.output.as_ref().unwrap_or(&self.x), &self.grad]
    }
}
