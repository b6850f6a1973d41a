//! Batch normalisation.
//!
//! Every channel of a batch is shifted to mean 0 and scaled to variance 1. Then two learnt numbers
//! of the channel, γ and β, scale and shift it again:
//!
//! ```text
//! y = (x − mean) / √(variance + ε) · γ + β          then max(y, 0), if a relu follows
//! ```
//!
//! The method is from Ioffe, Szegedy, "Batch Normalization: Accelerating Deep Network Training by
//! Reducing Internal Covariate Shift", 2015. In training, [`batch_norm`] takes mean and variance of
//! the batch at hand, over images and pixels, and the gradient flows through both. In evaluation,
//! [`batch_norm_with`] takes given statistics, the running averages of training.
//!
//! The module has four pieces. Devices that share a batch may want to share its statistics, and
//! then they communicate between the pieces:
//!
//! | | piece | between the pieces |
//! | --- | --- | --- |
//! | forward | [`Statistics::of`] | [`Statistics::merge`] over all ranks |
//! | | [`batch_norm_with`] | |
//! | backward | [`GradientSums::of`] | the sum over all ranks |
//! | | [`input_gradient`] | |
//!
//! Images may be bf16. Then the parameters are f32, and all computation is in f32. The eight binary
//! digits of bf16 are too few for sums over thousands of values and for differences of nearly equal
//! values.
//!
//! **Cost.** A batch norm does a few operations for each byte, so the speed of memory limits it.
//! [`batch_norm`] and its backward take each block of channels through both their pieces while the
//! block is in the cache, if it fits. Then in f32, for each element, forward reads `x` and writes
//! `y`: 8 bytes and 8 operations. Backward reads `x`, the output's gradient and, for the relu, the
//! output, and writes `dx`: 16 bytes and 9 operations. The separate pieces read everything twice:
//! 12 and 28 bytes.

mod backward_blocks;
mod gradient;
mod loops;
#[cfg(feature = "cuda")]
mod on_gpu;
mod op;
mod planes;
mod running;
mod statistics;
#[cfg(test)]
mod tests;

use candle_core::{Result, Tensor, bail};

pub use gradient::{GradientSums, input_gradient};
pub use running::{Average, average_all};
pub use statistics::Statistics;

use crate::cast;
use crate::element::computed_in;
use crate::rounded::is_rounded;
use op::BatchNorm;
use planes::Planes;
#[cfg(feature = "cuda")]
use statistics::check_channels;

impl Statistics {
    /// The statistics of a batch `[B, C, H, W]`.
    ///
    /// # Errors
    ///
    /// When `x` has another rank or no values, or on a dtype other than f32, f64 and bf16.
    pub fn of(x: &Tensor) -> Result<Self> {
        let planes = Planes::new(x.shape())?;
        if is_rounded(x) {
            return Self::of(&widened(x)?);
        }
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return on_gpu::statistics(x);
        }
        Self::of_cpu(x, &planes)
    }
}

/// Normalises a batch by its own statistics, and returns the output and the statistics.
///
/// `[B, C, H, W]`, `[C]`, `[C]` → `[B, C, H, W]`. With `relu`, negative results become 0. A channel
/// of equal values, such as a channel of a single pixel, becomes `bias`.
///
/// # Errors
///
/// When the shapes or dtypes do not fit, when there are no values, when `epsilon` is not positive,
/// or on a dtype other than f32, f64 and bf16. When `x` is bf16, the parameters must be f32.
pub fn batch_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    epsilon: f64,
    relu: bool,
) -> Result<(Tensor, Statistics)> {
    check(x, weight, bias, epsilon)?;
    if is_rounded(x) {
        let (y, statistics) = batch_norm(&widened(x)?, weight, bias, epsilon, relu)?;
        return Ok((cast(&y, x.dtype())?, statistics));
    }
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let x = &on_gpu::aligned(x)?;
        let statistics = Statistics::of(x)?;
        let batch_norm = on_gpu::BatchNorm::new(&statistics, true, epsilon, relu)?;
        return Ok((batch_norm.apply(x, weight, bias)?, statistics));
    }
    let (x, weight, bias) = (x.contiguous()?, weight.contiguous()?, bias.contiguous()?);
    let batch_norm = BatchNorm { of_batch: true, epsilon, relu };
    let (y, moments) = batch_norm.forward(&x, &weight, &bias, None)?;
    let statistics = moments.to_statistics()?;
    Ok((batch_norm.record(y, moments, [&x, &weight, &bias])?, statistics))
}

/// Normalises a batch by given statistics, such as running averages in evaluation.
///
/// `[B, C, H, W]`, `[C]`, `[C]` → `[B, C, H, W]`. The gradient treats the statistics as constants.
///
/// # Errors
///
/// The errors of [`batch_norm`], and when the statistics have another number of channels.
pub fn batch_norm_with(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    statistics: &Statistics,
    epsilon: f64,
    relu: bool,
) -> Result<Tensor> {
    let planes = check(x, weight, bias, epsilon)?;
    if is_rounded(x) {
        let y = batch_norm_with(&widened(x)?, weight, bias, statistics, epsilon, relu)?;
        return cast(&y, x.dtype());
    }
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        check_channels("mean", &statistics.mean, planes.channels)?;
        check_channels("variance", &statistics.variance, planes.channels)?;
        return on_gpu::BatchNorm::new(statistics, false, epsilon, relu)?.apply(x, weight, bias);
    }
    let (x, weight, bias) = (x.contiguous()?, weight.contiguous()?, bias.contiguous()?);
    let given = statistics.to_moments(planes.channels)?;
    let batch_norm = BatchNorm { of_batch: false, epsilon, relu };
    let (y, moments) = batch_norm.forward(&x, &weight, &bias, Some(given))?;
    batch_norm.record(y, moments, [&x, &weight, &bias])
}

/// Converts bf16 images on the CPU to the type that the loops compute in.
fn widened(x: &Tensor) -> Result<Tensor> {
    cast(x, computed_in(x.dtype()))
}

fn check(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<Planes> {
    let planes = Planes::new(x.shape())?;
    let expected = computed_in(x.dtype());
    for (name, parameter) in [("weight", weight), ("bias", bias)] {
        if parameter.dims() != [planes.channels] || parameter.dtype() != expected {
            bail!(
                "batch_norm: images {:?} {:?} need a {name} {:?} [{}], got {:?} {:?}",
                x.dtype(),
                x.dims(),
                expected,
                planes.channels,
                parameter.dtype(),
                parameter.dims()
            );
        }
    }
    // The comparison also refuses a NaN.
    if epsilon.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
        bail!("batch_norm: epsilon must be above 0, got {epsilon}");
    }
    Ok(planes)
}
