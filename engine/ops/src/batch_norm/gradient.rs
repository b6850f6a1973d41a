//! The gradients of a batch normalisation, in two halves.
//!
//! Let x̂ = (x − mean) / √(variance + ε), n the number of values in a channel, and dy the gradient
//! that passes the relu. The closed form is from Ioffe, Szegedy, "Batch Normalization", 2015:
//!
//! ```text
//! first half, sums over a channel:  Σdy   and   Σ dy·x̂
//! second half, by element:          dx = γ / √(variance + ε) · (dy − Σdy / n − x̂ · Σ(dy·x̂) / n)
//! ```
//!
//! The sums are the gradients of β and γ. Every x moves its channel's mean and variance, which
//! gives the two terms of dx with the sums. When the statistics are given, as in evaluation, both
//! terms are absent. Ranks that share their statistics add up their sums between the two halves.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::on_cpu::{self, Factors, Planes, Sums};
#[cfg(feature = "cuda")]
use super::on_gpu;
use super::statistics::{Statistics, check_channels};
use super::{Images, widened};
use crate::rounded::is_rounded;

/// The first half of backward, `[2, C]` in f64: Σ dy of each channel, then Σ dy·x̂ of each.
#[derive(Clone, Debug)]
pub struct GradientSums(Tensor);

impl GradientSums {
    /// Computes the sums over a batch of images `x` and the output's gradient `grad`, both
    /// `[B, C, H, W]`.
    ///
    /// A batch norm with a relu also needs its `output`, because the relu passes no gradient where
    /// the output is zero. Fails when the shapes or dtypes do not fit.
    pub fn of(
        x: &Tensor,
        output: Option<&Tensor>,
        grad: &Tensor,
        statistics: &Statistics,
        epsilon: f64,
    ) -> Result<Self> {
        let planes = check(x, output, grad)?;
        statistics.check(planes.channels)?;
        if is_rounded(x) {
            let output = output.map(widened).transpose()?;
            return Self::of(&widened(x)?, output.as_ref(), &widened(grad)?, statistics, epsilon);
        }
        let images = Images::new(x, output, grad)?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return Ok(Self(on_gpu::gradient_sums(&images, statistics, epsilon)?.exact));
        }
        let moments = statistics.to_moments()?;
        let (_, sums) = on_cpu::gradients(&images, &moments, epsilon, None, None)?;
        let both = sums.iter().map(|of| of.bias).chain(sums.iter().map(|of| of.weight));
        Tensor::from_iter(both, &Device::Cpu)?.reshape((2, ())).map(Self)
    }

    /// Takes sums that were added up elsewhere, for example over several ranks: `[2, C]` in f64.
    /// Fails when the tensor has another shape or dtype.
    pub fn new(sums: Tensor) -> Result<Self> {
        match (sums.dtype(), sums.dims()) {
            (DType::F64, [2, _]) => Ok(Self(sums)),
            (dtype, dims) => {
                bail!("batch_norm: gradient sums are F64 [2, channels], got {dtype:?} {dims:?}")
            }
        }
    }

    /// Both sums, `[2, C]`.
    pub fn as_tensor(&self) -> &Tensor {
        &self.0
    }

    /// Σ dy: the gradient of the bias, `[C]`.
    pub fn bias(&self) -> Result<Tensor> {
        self.0.get(0)
    }

    /// Σ dy·x̂: the gradient of the weight, `[C]`.
    pub fn weight(&self) -> Result<Tensor> {
        self.0.get(1)
    }
}

/// Computes the second half of backward: the gradient of `x`.
///
/// `x`, `output` and `grad` are the arguments of [`GradientSums::of`], `[B, C, H, W]`, and `weight`
/// is `[C]`; the result is `[B, C, H, W]`. `statistics` describe the same batch as `sums`, on any
/// number of ranks: `statistics.count` is the n that divides the sums. Fails when the shapes or
/// dtypes do not fit, or on a dtype other than f32, f64 and bf16.
pub fn input_gradient(
    x: &Tensor,
    output: Option<&Tensor>,
    grad: &Tensor,
    weight: &Tensor,
    statistics: &Statistics,
    sums: &GradientSums,
    epsilon: f64,
) -> Result<Tensor> {
    let planes = check(x, output, grad)?;
    statistics.check(planes.channels)?;
    check_channels("weight", weight, planes.channels)?;
    let (channels, found) = (planes.channels, sums.as_tensor().dims());
    if found != [2, channels] {
        bail!("batch_norm: {channels} channels need gradient sums [2, {channels}], got {found:?}");
    }
    if is_rounded(x) {
        let (wide, output) = (widened(x)?, output.map(widened).transpose()?);
        let (output, grad) = (output.as_ref(), widened(grad)?);
        return input_gradient(&wide, output, &grad, weight, statistics, sums, epsilon)?
            .to_dtype(x.dtype());
    }
    let (images, count) = (Images::new(x, output, grad)?, Some(statistics.count));
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let sums = sums.as_tensor();
        return on_gpu::input_gradient(&images, weight, statistics, sums, count, epsilon);
    }
    let weight = weight.detach().to_dtype(DType::F64)?.to_vec1()?;
    let of_channels = sums.bias()?.to_vec1()?.into_iter().zip(sums.weight()?.to_vec1()?);
    let sums: Vec<_> = of_channels.map(|(bias, weight)| Sums { bias, weight }).collect();
    let factors = Factors { weight: &weight, count };
    let moments = statistics.to_moments()?;
    let (dx, _) = on_cpu::gradients(&images, &moments, epsilon, Some(&sums), Some(factors))?;
    dx.map_or_else(|| bail!("batch_norm: there are factors for a gradient"), Ok)
}

fn check(x: &Tensor, output: Option<&Tensor>, grad: &Tensor) -> Result<Planes> {
    for other in output.iter().chain([&grad]) {
        if other.shape() != x.shape() || other.dtype() != x.dtype() {
            let (dtype, found) = (x.dtype(), other.dtype());
            let (dims, other) = (x.dims(), other.dims());
            bail!(
                "batch_norm: a gradient of images {dtype:?} {dims:?} cannot be taken with {found:?} {other:?}"
            );
        }
    }
    Planes::new(x.shape())
}
