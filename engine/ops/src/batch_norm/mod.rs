//! Batch normalisation.
//!
//! Every channel of a batch is shifted to mean 0 and scaled to variance 1. Then two learnt numbers scale and shift it again:
//!
//! ```text
//! y = (x − mean) / √(variance + ε) · γ + β          then max(y, 0), if a relu follows
//! ```
//!
//! The method is from Ioffe, Szegedy, "Batch Normalization", 2015. In training, [`batch_norm`] takes mean and variance of the
//! batch, over images and pixels, and the gradient flows through both. In evaluation, [`batch_norm_with`] takes given
//! statistics, the running averages of training. Devices that share a batch and its statistics communicate between the pieces:
//!
//! | | piece | between the pieces |
//! | --- | --- | --- |
//! | forward | [`Statistics::of`] | [`Statistics::merge`] over all ranks |
//! | | [`batch_norm_with`] | |
//! | backward | [`OutputGradient::sums`] | the sum over all ranks |
//! | | [`OutputGradient::of_input`] | |
//!
//! Images may be bf16. Then the parameters and all computation are f32: eight binary digits are too few for long sums.
//!
//! **Cost.** [`batch_norm`] and its backward take each block of channels through both their pieces while the block is in the
//! cache. Then forward moves 8 bytes for each f32, and backward 16. The separate pieces read everything twice: 12 and 28.

mod gradient;
mod loops;
mod on_cpu;
mod statistics;
#[cfg(test)]
pub(crate) mod tests;

use candle_core::{DType, Result, Tensor, bail};

pub use gradient::OutputGradient;
pub use statistics::{Average, Statistics, average_all};

use crate::backward::record;
use crate::copies::{cast, is_rounded};
use crate::kernels::element::computed_in;
use crate::kernels::gpu;
use crate::kernels::windows::Channels;
use crate::layer_norm::check_norm;
use loops::Sums;

impl Statistics {
    /// The statistics of a batch `[B, C, H, W]`. Fails on another rank, without values, and on dtypes but f32, f64 and bf16.
    pub fn of(x: &Tensor) -> Result<Self> {
        let count = sizes(x)?.count();
        let x = contiguous(&widened(x)?)?;
        if x.device().is_cuda() {
            let [mean, variance] = gpu::moments(&x)?;
            return Ok(Self { mean, variance, count });
        }
        Self::new(&on_cpu::moments(&x)?, count)
    }
}

/// Normalises a batch by its own statistics, and returns the output and the statistics.
///
/// `[B, C, H, W]`, `[C]`, `[C]` → `[B, C, H, W]`. With `relu`, negative results become 0. A channel of equal values, such as
/// a channel of a single pixel, becomes `bias`. Fails when the shapes or dtypes do not fit, when there are no values, when
/// `epsilon` is not positive, or on a dtype other than f32, f64 and bf16. When `x` is bf16, the parameters must be f32.
pub fn batch_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    epsilon: f64,
    relu: bool,
) -> Result<(Tensor, Statistics)> {
    normalised([x, weight, bias], None, epsilon, relu)
}

/// Normalises a batch by given statistics, such as running averages in evaluation.
///
/// `[B, C, H, W]`, `[C]`, `[C]` → `[B, C, H, W]`. The gradient treats the statistics as constants.
/// Fails like [`batch_norm`], and when the statistics have another number of channels.
pub fn batch_norm_with(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    statistics: &Statistics,
    epsilon: f64,
    relu: bool,
) -> Result<Tensor> {
    Ok(normalised([x, weight, bias], Some(statistics), epsilon, relu)?.0)
}

/// Normalises a batch by given statistics or by its own, and records the result on the tape.
fn normalised(
    [x, weight, bias]: [&Tensor; 3],
    given: Option<&Statistics>,
    epsilon: f64,
    relu: bool,
) -> Result<(Tensor, Statistics)> {
    let Channels { channels, .. } = sizes(x)?;
    let of_channels = (channels, &[computed_in(x.dtype())][..]);
    check_norm("batch_norm", x, [weight, bias], of_channels, epsilon)?;
    given.map_or(Ok(()), |given| given.check(channels))?;
    if is_rounded(x) {
        let (y, statistics) = normalised([&widened(x)?, weight, bias], given, epsilon, relu)?;
        return Ok((cast(&y, x.dtype())?, statistics));
    }
    let (x, weight, bias) = (contiguous(x)?, weight.contiguous()?, bias.contiguous()?);
    let inputs = [&x, &weight, &bias];
    let (y, statistics) = if x.device().is_cuda() {
        let statistics = given.cloned().map_or_else(|| Statistics::of(&x), Ok)?;
        (gpu::normalise(inputs, statistics.moments(), epsilon, relu)?, statistics)
    } else {
        let given = given.map(Statistics::to_moments).transpose()?;
        let (y, moments) = on_cpu::normalise(inputs, given.as_deref(), epsilon, relu)?;
        (y, Statistics::new(&moments, sizes(&x)?.count())?)
    };
    let count = given.is_none().then_some(statistics.count);
    let (of_x, of_weight, of_y) = (x.clone(), weight.clone(), statistics.clone());
    let y = record("batch_norm", y, x.shape(), inputs, move |y, dy| {
        backward([&of_x, &of_weight, y, dy], &of_y, count, epsilon, relu)
    })?;
    Ok((y, statistics))
}

/// Computes the gradients of the input if needed, of the weight, and of the bias. `count` is the number of values of the
/// batch's own statistics, or `None` when the statistics were given, and no gradient flows through them.
fn backward(
    [x, weight, y, dy]: [&Tensor; 4],
    statistics: &Statistics,
    count: Option<usize>,
    epsilon: f64,
    relu: bool,
) -> Result<[Option<Tensor>; 3]> {
    let dy = OutputGradient::new(x, relu.then_some(y), dy)?;
    if x.device().is_cuda() {
        let (images, [mean, variance]) = (dy.images(), statistics.moments());
        let [sums, rounded] = gpu::gradient_sums(images, [mean, variance], epsilon, relu)?;
        let of_channels = [mean, variance, &sums];
        let dx = || gpu::input_gradient(images, weight, of_channels, count, epsilon, relu);
        let dx = x.track_op().then(dx).transpose()?;
        return Ok([dx, Some(rounded.get(1)?), Some(rounded.get(0)?)]);
    }
    let weights: Vec<f64> = weight.detach().to_dtype(DType::F64)?.to_vec1()?;
    let (moments, weights) = (statistics.to_moments()?, x.track_op().then_some(&weights[..]));
    let (dx, sums) = on_cpu::gradients(&dy, &moments, epsilon, None, weights, count)?;
    let parameter = |of: fn(&Sums) -> f64| {
        Tensor::from_iter(sums.iter().map(of), x.device())?.to_dtype(weight.dtype())
    };
    Ok([dx, Some(parameter(|sums| sums.weight)?), Some(parameter(|sums| sums.bias)?)])
}

/// Makes images contiguous, on a GPU at an address from which the kernels can read whole vectors.
fn contiguous(images: &Tensor) -> Result<Tensor> {
    let vector = Channels::of(images.shape())?.vector();
    let images = images.contiguous()?;
    if images.device().is_cuda() && !images.layout().start_offset().is_multiple_of(vector) {
        return images.force_contiguous();
    }
    Ok(images)
}

/// Returns the sizes of images, which have four dimensions and at least one element.
fn sizes(images: &Tensor) -> Result<Channels> {
    if images.rank() != 4 {
        bail!("batch_norm: images [B, C, H, W] expected, got {:?}", images.dims());
    }
    if images.elem_count() == 0 {
        bail!("batch_norm: there are no values in {:?}", images.dims());
    }
    Channels::of(images.shape())
}

/// Converts bf16 images on the CPU to the type that the loops compute in.
fn widened(x: &Tensor) -> Result<Tensor> {
    if is_rounded(x) { cast(x, DType::F32) } else { Ok(x.clone()) }
}
