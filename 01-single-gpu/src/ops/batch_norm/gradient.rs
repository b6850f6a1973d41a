//! The gradients of a batch normalisation, in two halves.
//!
//! With x̂ = (x − mean) / √(variance + ε), n values in a channel, and dy what passes the relu (Ioffe,
//! Szegedy, "Batch Normalization", 2015, in closed form):
//!
//! ```text
//! first half, sums over a channel:      Σdy   and   Σ dy·x̂
//! second half, by element:              dx = γ / √(variance + ε) · (dy − Σdy / n − x̂ · Σ(dy·x̂) / n)
//! ```
//!
//! The sums are the gradients of β and γ. The two terms they give to dx are there because every x moves
//! its channel's mean and variance; where statistics are given, as in evaluation, both are absent.
//! Between the halves is where ranks that share their statistics must add their sums up.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, bail};
use rayon::prelude::*;

use super::loops::{self, GradientLine};
use super::planes::Planes;
use super::statistics::{Moments, Statistics};
use crate::ops::Element;
use crate::ops::element::{elements, for_dtype};
use crate::ops::simd::vectorised;

/// The first half of backward: Σ dy and Σ dy·x̂ of each channel, `[C]` and `[C]`, in f64.
#[derive(Clone, Debug)]
pub struct GradientSums {
    /// Σ dy: the gradient of the bias.
    pub bias: Tensor,
    /// Σ dy·x̂: the gradient of the weight.
    pub weight: Tensor,
}

impl GradientSums {
    /// The sums over a batch of images `x` with the output's gradient `grad`, both `[B, C, H, W]`; with
    /// the `output` too if a relu made it, which passes no gradient where the output is zero.
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
        if !x.device().is_cpu() {
            return Self::composed(x, output, grad, statistics, epsilon);
        }
        let moments = statistics.to_moments(planes.channels)?;
        let tensors = Tensors::new(x, output, grad)?;
        for_dtype!(x.dtype(), "batch_norm", T => {
            tensors.read::<T, _>(|operands| {
                let blocks = planes.blocks();
                let sums = blocks.par_iter().map(|channels| {
                    let moments = moments.block(channels);
                    vectorised(#[inline(always)] || Sums::of_block(&planes, operands, channels, &moments, epsilon))
                });
                Sums::concatenated(sums.collect()).to_tensors()
            })
        })
    }

    pub(super) fn composed(
        x: &Tensor,
        output: Option<&Tensor>,
        grad: &Tensor,
        statistics: &Statistics,
        epsilon: f64,
    ) -> Result<Self> {
        let grad = passed(output, grad)?;
        let sum = |terms: &Tensor| terms.sum((0, 2, 3))?.to_dtype(DType::F64);
        let (normalised, _) = normalised(x, statistics, epsilon)?;
        Ok(Self { bias: sum(&grad)?, weight: sum(&(&grad * normalised)?)? })
    }
}

/// The second half of backward: the gradient of `x`, `[B, C, H, W]`.
///
/// `statistics` are those of the batch that `sums` were taken over, on however many ranks:
/// `statistics.count` is the n that divides the sums.
///
/// # Errors
///
/// When the shapes or dtypes do not fit.
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
    if !x.device().is_cpu() {
        return composed_input_gradient(x, output, grad, weight, statistics, sums, epsilon);
    }
    let moments = statistics.to_moments(planes.channels)?;
    let weight = weight.detach().to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let sums = Sums { bias: sums.bias.to_vec1()?, weight: sums.weight.to_vec1()? };
    let tensors = Tensors::new(x, output, grad)?;
    for_dtype!(x.dtype(), "batch_norm", T => {
        tensors.read::<T, _>(|operands| {
            let mut dx = vec![<T as num_traits::Zero>::zero(); x.elem_count()];
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

pub(super) fn composed_input_gradient(
    x: &Tensor,
    output: Option<&Tensor>,
    grad: &Tensor,
    weight: &Tensor,
    statistics: &Statistics,
    sums: &GradientSums,
    epsilon: f64,
) -> Result<Tensor> {
    let share = 1.0 / statistics.count as f64;
    let (normalised, inverse_deviation) = normalised(x, statistics, epsilon)?;
    let pull = normalised.broadcast_mul(&per_channel(&(&sums.weight * share)?, x)?)?;
    let push = per_channel(&(&sums.bias * share)?, x)?;
    let slope = (per_channel(weight, x)? * inverse_deviation)?;
    passed(output, grad)?.broadcast_sub(&push)?.sub(&pull)?.broadcast_mul(&slope)
}

/// x̂, and 1 / √(variance + ε) as `[1, C, 1, 1]`.
fn normalised(x: &Tensor, statistics: &Statistics, epsilon: f64) -> Result<(Tensor, Tensor)> {
    let inverse_deviation = (&statistics.variance + epsilon)?.sqrt()?.recip()?;
    let inverse_deviation = per_channel(&inverse_deviation, x)?;
    let centred = x.detach().broadcast_sub(&per_channel(&statistics.mean, x)?)?;
    Ok((centred.broadcast_mul(&inverse_deviation)?, inverse_deviation))
}

/// Values `[C]` as `[1, C, 1, 1]`, in the dtype of `x`.
pub(super) fn per_channel(values: &Tensor, x: &Tensor) -> Result<Tensor> {
    values.detach().to_dtype(x.dtype())?.reshape((1, (), 1, 1))
}

fn passed(output: Option<&Tensor>, grad: &Tensor) -> Result<Tensor> {
    match output {
        Some(output) => output.detach().le(0.0)?.where_cond(&grad.zeros_like()?, grad),
        None => Ok(grad.clone()),
    }
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

/// What both halves of backward walk over, contiguous.
pub(super) struct Tensors {
    x: Tensor,
    output: Option<Tensor>,
    grad: Tensor,
}

impl Tensors {
    pub(super) fn new(x: &Tensor, output: Option<&Tensor>, grad: &Tensor) -> Result<Self> {
        let output = output.map(Tensor::contiguous).transpose()?;
        Ok(Self { x: x.contiguous()?, output, grad: grad.contiguous()? })
    }

    pub(super) fn read<T: Element, R>(
        &self,
        work: impl FnOnce(Operands<'_, T>) -> Result<R>,
    ) -> Result<R> {
        let (x, x_layout) = self.x.storage_and_layout();
        let (grad, grad_layout) = self.grad.storage_and_layout();
        // Without a relu nothing asks for the output; the gradient stands in for it.
        let (y, y_layout) = self.output.as_ref().unwrap_or(&self.grad).storage_and_layout();
        work(Operands {
            x: elements(&x, x_layout)?,
            y: elements(&y, y_layout)?,
            grad: elements(&grad, grad_layout)?,
            relu: self.output.is_some(),
        })
    }
}

/// The elements of [`Tensors`].
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    x: &'a [T],
    y: &'a [T],
    grad: &'a [T],
    relu: bool,
}

impl<'a, T: Element> Operands<'a, T> {
    /// For each image, what a block holds of all three.
    #[inline(always)]
    fn of(
        self,
        planes: &Planes,
        channels: &Range<usize>,
    ) -> impl Iterator<Item = [&'a [T]; 3]> + use<'a, T> {
        let (x, y) = (planes.of(self.x, channels), planes.of(self.y, channels));
        x.zip(y).zip(planes.of(self.grad, channels)).map(|((x, y), grad)| [x, y, grad])
    }
}

/// [`GradientSums`] in plain memory, of all channels or of a block of them.
pub(super) struct Sums {
    pub(super) bias: Vec<f64>,
    pub(super) weight: Vec<f64>,
}

impl Sums {
    #[inline(always)]
    pub(super) fn of_block<T: Element>(
        planes: &Planes,
        operands: Operands<'_, T>,
        channels: &Range<usize>,
        moments: &Moments,
        epsilon: f64,
    ) -> Self {
        let mut sums = Self { bias: vec![0.0; channels.len()], weight: vec![0.0; channels.len()] };
        for operands_of_image in operands.of(planes, channels) {
            for channel in 0..channels.len() {
                let plane = channel * planes.plane..(channel + 1) * planes.plane;
                let centre = loops::centre::<T>(moments.mean[channel]);
                let plane = operands_of_image.map(|operand| &operand[plane.clone()]);
                let (grad, product) = loops::gradient_sums(operands.relu, plane, centre);
                sums.bias[channel] += grad;
                sums.weight[channel] += product;
            }
        }
        for channel in 0..channels.len() {
            let mean = moments.mean[channel];
            // The distances were taken from the mean as `T` holds it.
            let beside = candle_core::WithDType::to_f64(loops::centre::<T>(mean)) - mean;
            sums.weight[channel] += beside * sums.bias[channel];
            sums.weight[channel] *= moments.inverse_deviation(channel, epsilon);
        }
        sums
    }

    pub(super) fn concatenated(blocks: Vec<Self>) -> Self {
        let mut all = Self { bias: Vec::new(), weight: Vec::new() };
        for block in blocks {
            all.bias.extend(block.bias);
            all.weight.extend(block.weight);
        }
        all
    }

    fn block(&self, channels: &Range<usize>) -> Self {
        Self {
            bias: self.bias[channels.clone()].to_vec(),
            weight: self.weight[channels.clone()].to_vec(),
        }
    }

    fn to_tensors(&self) -> Result<GradientSums> {
        let tensor = |values: &[f64]| Tensor::new(values, &Device::Cpu);
        Ok(GradientSums { bias: tensor(&self.bias)?, weight: tensor(&self.weight)? })
    }
}

/// What each channel of a block does to its gradient; without `sums`, where statistics were given.
pub(super) fn gradient_lines<T: Element>(
    moments: &Moments,
    weight: &[f64],
    sums: Option<&Sums>,
    epsilon: f64,
) -> Vec<GradientLine<T>> {
    let lines = weight.iter().enumerate().map(|(channel, weight)| {
        let inverse_deviation = moments.inverse_deviation(channel, epsilon);
        let slope = weight * inverse_deviation;
        let share = slope / moments.count as f64;
        let (pull, push) = sums.map_or((0.0, 0.0), |sums| {
            (sums.weight[channel] * share * inverse_deviation, sums.bias[channel] * share)
        });
        GradientLine::new(moments.mean[channel], slope, pull, push)
    });
    lines.collect()
}

#[inline(always)]
pub(super) fn draw_block<T: Element>(
    planes: &Planes,
    operands: Operands<'_, T>,
    channels: &Range<usize>,
    lines: &[GradientLine<T>],
    dx: Vec<&mut [T]>,
) {
    for (operands_of_image, dx) in operands.of(planes, channels).zip(dx) {
        for ((channel, dx), line) in dx.chunks_exact_mut(planes.plane).enumerate().zip(lines) {
            let plane = channel * planes.plane..(channel + 1) * planes.plane;
            line.draw(operands.relu, operands_of_image.map(|operand| &operand[plane.clone()]), dx);
        }
    }
}
