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

use candle_core::{DType, Result, Tensor, bail};
use rayon::prelude::*;

use super::backward_blocks::{Sums, Tensors, draw_block, gradient_lines};
#[cfg(feature = "cuda")]
use super::on_gpu;
use super::planes::Planes;
use super::statistics::{Statistics, check_channels};
use super::widened;
use crate::element::for_dtype;
use crate::rounded::is_rounded;
use crate::simd::vectorised;
use crate::zeros::zeros;

/// The first half of backward, `[2, C]` in f64: Σ dy of each channel, then Σ dy·x̂ of each.
#[derive(Clone, Debug)]
pub struct GradientSums(Tensor);

impl GradientSums {
    /// Computes the sums over a batch of images `x` and the output's gradient `grad`, both
    /// `[B, C, H, W]`.
    ///
    /// A batch norm with a relu also needs its `output`, because the relu passes no gradient where
    /// the output is zero.
    ///
    /// # Errors
    ///
    /// When the shapes or dtypes do not fit.
    pub fn of(
        x: &Tensor,
        output: Option<&Tensor>,
        grad: &Tensor,
        statistics: &Statistics,
        epsilon: f64,
    ) -> Result<Self> {
        let planes = check(x, output, grad)?;
        if is_rounded(x) {
            let output = output.map(widened).transpose()?;
            return Self::of(&widened(x)?, output.as_ref(), &widened(grad)?, statistics, epsilon);
        }
        let tensors = Tensors::new(x, output, grad)?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return on_gpu::gradient_sums(&tensors, statistics, epsilon).map(Self);
        }
        let moments = statistics.to_moments(planes.channels)?;
        for_dtype!(x.dtype(), "batch_norm", T => {
            tensors.read::<T, _>(|operands| {
                let blocks = planes.blocks();
                let sums = blocks.par_iter().map(|channels| {
                    let moments = moments.block(channels);
                    vectorised(#[inline(always)] || Sums::of_block(&planes, operands, channels, &moments, epsilon))
                });
                Sums::concatenated(sums.collect()).to_tensor().map(Self)
            })
        })
    }

    /// Takes sums that were added up elsewhere, for example over several ranks: `[2, C]` in f64.
    ///
    /// # Errors
    ///
    /// When the tensor has another shape or dtype.
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
    ///
    /// # Errors
    ///
    /// None is known.
    pub fn bias(&self) -> Result<Tensor> {
        self.0.get(0)
    }

    /// Σ dy·x̂: the gradient of the weight, `[C]`.
    ///
    /// # Errors
    ///
    /// None is known.
    pub fn weight(&self) -> Result<Tensor> {
        self.0.get(1)
    }
}

/// Computes the second half of backward: the gradient of `x`.
///
/// `x`, `output` and `grad` are the arguments of [`GradientSums::of`], `[B, C, H, W]`, and `weight`
/// is `[C]`; the result is `[B, C, H, W]`. `statistics` describe the same batch as `sums`, on any
/// number of ranks: `statistics.count` is the n that divides the sums.
///
/// # Errors
///
/// When the shapes or dtypes do not fit, or on a dtype other than f32, f64 and bf16.
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
    for (name, of_channels) in
        [("mean", &statistics.mean), ("variance", &statistics.variance), ("weight", weight)]
    {
        check_channels(name, of_channels, planes.channels)?;
    }
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
    let tensors = Tensors::new(x, output, grad)?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let share = 1.0 / statistics.count as f64;
        let sums = sums.as_tensor();
        let constants = on_gpu::Constants { weight, statistics, sums, share, epsilon };
        return on_gpu::input_gradient(&tensors, &constants);
    }
    let moments = statistics.to_moments(planes.channels)?;
    let weight = weight.detach().to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let sums = Sums { bias: sums.bias()?.to_vec1()?, weight: sums.weight()?.to_vec1()? };
    for_dtype!(x.dtype(), "batch_norm", T => {
        tensors.read::<T, _>(|operands| {
            let mut dx = zeros(x.elem_count());
            let blocks = planes.blocks().into_par_iter().zip(planes.split_mut(&mut dx));
            blocks.for_each(|(channels, dx)| {
                let (moments, sums) = (moments.block(&channels), sums.block(&channels));
                let lines =
                    gradient_lines(&moments, &weight[channels.clone()], Some(&sums), epsilon);
                vectorised(#[inline(always)] || draw_block(&planes, operands, &channels, &lines, dx));
            });
            Tensor::from_vec(dx, x.shape(), x.device())
        })
    })
}

fn check(x: &Tensor, output: Option<&Tensor>, grad: &Tensor) -> Result<Planes> {
    for other in output.iter().chain([&grad]) {
        if other.shape() != x.shape() || other.dtype() != x.dtype() {
            bail!(
                "batch_norm: a gradient of images {:?} {:?} cannot be taken with {:?} {:?}",
                x.dtype(),
                x.dims(),
                other.dtype(),
                other.dims()
            );
        }
    }
    Planes::new(x.shape())
}
