//! Batch normalisation.
//!
//! Every channel of a batch is shifted to mean 0 and scaled to variance 1, then scaled and shifted again
//! by two learnt numbers of the channel:
//!
//! ```text
//! y = (x − mean) / √(variance + ε) · γ + β          then max(y, 0), if a relu follows
//! ```
//!
//! (Ioffe, Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
//! Covariate Shift", 2015). In training, mean and variance are those of the batch at hand, over images
//! and pixels, and the gradient flows through them: [`batch_norm`]. In evaluation they are given, running
//! averages of what training saw: [`batch_norm_with`].
//!
//! It is four pieces, because devices that share a batch may want to share its statistics, and then have
//! something to say between them:
//!
//! | | piece | between the pieces |
//! | --- | --- | --- |
//! | forward | [`Statistics::of`] | [`Statistics::merge`] of all ranks' |
//! | | [`batch_norm_with`] | |
//! | backward | [`GradientSums::of`] | the sum of all ranks' |
//! | | [`input_gradient`] | |
//!
//! **Cost.** A few operations for each byte, so it is as fast as memory is. [`batch_norm`] and its
//! backward take each block of channels through both their pieces while it is in the cache, if it fits.
//! Then of each element, in f32, forward reads `x` and writes `y`: 8 bytes and 8 operations. Backward
//! reads `x`, the output's gradient and, for the relu, the output, and writes `dx`: 16 bytes and 9
//! operations. The pieces by themselves read everything twice: 12 and 28 bytes.

mod gradient;
mod lanes;
mod planes;
mod statistics;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, WithDType, bail};
use rayon::prelude::*;

pub use gradient::{GradientSums, input_gradient};
pub use statistics::Statistics;

use super::element::{Element, cpu_elements, for_dtype};
use super::relu::relu as rectified;
use super::simd::vectorised;
use gradient::{Operands, Sums, Tensors, gradient_lines, per_channel};
use lanes::Line;
use planes::Planes;
use statistics::Moments;

/// Normalises a batch by its own statistics, and returns them.
///
/// `[B, C, H, W]`, `[C]`, `[C]` → `[B, C, H, W]`. With `relu`, negative results become 0. A channel whose
/// values are all the same, of a single pixel for instance, gives `bias`.
///
/// # Errors
///
/// When the shapes or dtypes do not fit, when there are no values, when `epsilon` is not positive, or on
/// a dtype other than f32 and f64.
pub fn batch_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    epsilon: f64,
    relu: bool,
) -> Result<(Tensor, Statistics)> {
    check(x, weight, bias, epsilon)?;
    if !x.device().is_cpu() {
        return Ok((composed(x, weight, bias, epsilon, relu)?, Statistics::composed(x)?));
    }
    let moments = Arc::default();
    let op = BatchNorm { moments: Arc::clone(&moments), of_batch: true, epsilon, relu };
    let y = x.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, op)?;
    Ok((y, saved(&moments)?.to_statistics()?))
}

/// Normalises a batch by given statistics, such as running averages in evaluation.
///
/// `[B, C, H, W]`, `[C]`, `[C]` → `[B, C, H, W]`. The statistics are constants to the gradient.
///
/// # Errors
///
/// As [`batch_norm`], and when the statistics are of another number of channels.
pub fn batch_norm_with(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    statistics: &Statistics,
    epsilon: f64,
    relu: bool,
) -> Result<Tensor> {
    let planes = check(x, weight, bias, epsilon)?;
    if !x.device().is_cpu() {
        return composed_with(x, weight, bias, statistics, epsilon, relu);
    }
    let moments = Arc::new(OnceLock::from(statistics.to_moments(planes.channels)?));
    let op = BatchNorm { moments, of_batch: false, epsilon, relu };
    x.contiguous()?.apply_op3(&weight.contiguous()?, &bias.contiguous()?, op)
}

fn check(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<Planes> {
    let planes = Planes::new(x.shape())?;
    for (name, parameter) in [("weight", weight), ("bias", bias)] {
        if parameter.dims() != [planes.channels] || parameter.dtype() != x.dtype() {
            bail!(
                "batch_norm: images {:?} {:?} need a {name} {:?} [{}], got {:?} {:?}",
                x.dtype(),
                x.dims(),
                x.dtype(),
                planes.channels,
                parameter.dtype(),
                parameter.dims()
            );
        }
    }
    // A NaN is not positive either.
    if epsilon.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
        bail!("batch_norm: epsilon must be above 0, got {epsilon}");
    }
    Ok(planes)
}

fn composed(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    epsilon: f64,
    relu: bool,
) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim((0, 2, 3))?)?;
    let variance = centred.sqr()?.mean_keepdim((0, 2, 3))?;
    let normalised = centred.broadcast_div(&(variance + epsilon)?.sqrt()?)?;
    scaled_and_shifted(&normalised, weight, bias, relu)
}

fn composed_with(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    statistics: &Statistics,
    epsilon: f64,
    relu: bool,
) -> Result<Tensor> {
    let centred = x.broadcast_sub(&per_channel(&statistics.mean, x)?)?;
    let deviation = (&statistics.variance + epsilon)?.sqrt()?;
    let normalised = centred.broadcast_div(&per_channel(&deviation, x)?)?;
    scaled_and_shifted(&normalised, weight, bias, relu)
}

fn scaled_and_shifted(x: &Tensor, weight: &Tensor, bias: &Tensor, relu: bool) -> Result<Tensor> {
    let by_channel = |values: &Tensor| values.reshape((1, (), 1, 1));
    let y = x.broadcast_mul(&by_channel(weight)?)?.broadcast_add(&by_channel(bias)?)?;
    if relu { rectified(&y) } else { Ok(y) }
}

/// One application: it keeps the statistics from forward for backward.
struct BatchNorm {
    moments: Arc<OnceLock<Moments>>,
    /// Whether the statistics are the batch's own, and so move with it.
    of_batch: bool,
    epsilon: f64,
    relu: bool,
}

fn saved(moments: &OnceLock<Moments>) -> Result<&Moments> {
    match moments.get() {
        Some(moments) => Ok(moments),
        None => bail!("batch_norm: no statistics, because forward did not run"),
    }
}

impl BatchNorm {
    fn forward<T: Element>(
        &self,
        planes: &Planes,
        x: &[T],
        weight: &[T],
        bias: &[T],
    ) -> (Vec<T>, Moments) {
        let mut y = vec![T::zero(); x.len()];
        let blocks = planes.blocks().into_par_iter().zip(planes.split_mut(&mut y));
        let moments = blocks.map(|(channels, y)| {
            vectorised(
                #[inline(always)]
                || {
                    let moments = match self.moments.get() {
                        Some(given) => given.block(&channels),
                        None => Moments::of_block(planes, x, &channels),
                    };
                    let (weight, bias) = (&weight[channels.clone()], &bias[channels.clone()]);
                    self.draw_block(planes, x, &channels, &moments, (weight, bias), y);
                    moments
                },
            )
        });
        let moments = Moments::concatenated(moments.collect(), planes.count());
        (y, moments)
    }

    /// The input's gradient, if it is wanted, and the sums that are the parameters' gradients.
    fn backward<T: Element>(
        &self,
        planes: &Planes,
        operands: Operands<'_, T>,
        moments: &Moments,
        weight: &[f64],
        want_dx: bool,
    ) -> (Option<Vec<T>>, Sums) {
        let mut dx = want_dx.then(|| vec![T::zero(); planes.count() * planes.channels]);
        let blocks = planes.blocks();
        let rooms: Vec<Option<_>> = match &mut dx {
            Some(dx) => planes.split_mut(dx).into_iter().map(Some).collect(),
            None => blocks.iter().map(|_| None).collect(),
        };
        let sums = blocks.into_par_iter().zip(rooms).map(|(channels, dx)| {
            vectorised(
                #[inline(always)]
                || {
                    let moments = moments.block(&channels);
                    let sums = Sums::of_block(planes, operands, &channels, &moments, self.epsilon);
                    if let Some(dx) = dx {
                        let through_statistics = self.of_batch.then_some(&sums);
                        let weight = &weight[channels.clone()];
                        let lines =
                            gradient_lines(&moments, weight, through_statistics, self.epsilon);
                        gradient::draw_block(planes, operands, &channels, &lines, dx);
                    }
                    sums
                },
            )
        });
        let sums = Sums::concatenated(sums.collect());
        (dx, sums)
    }

    #[inline(always)]
    fn draw_block<T: Element>(
        &self,
        planes: &Planes,
        x: &[T],
        channels: &Range<usize>,
        moments: &Moments,
        (weight, bias): (&[T], &[T]),
        y: Vec<&mut [T]>,
    ) {
        let lines: Vec<Line<T>> = (0..channels.len())
            .map(|channel| {
                let scale = WithDType::to_f64(weight[channel])
                    * moments.inverse_deviation(channel, self.epsilon);
                Line::new(moments.mean[channel], scale, WithDType::to_f64(bias[channel]))
            })
            .collect();
        for (x, y) in planes.of(x, channels).zip(y) {
            let planes_of_image =
                x.chunks_exact(planes.plane).zip(y.chunks_exact_mut(planes.plane));
            for ((x, y), line) in planes_of_image.zip(&lines) {
                line.draw(self.relu, x, y);
            }
        }
    }
}

impl CustomOp3 for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let planes = Planes::new(x_layout.shape())?;
        for_dtype!(x.dtype(), self.name(), T => {
            let (y, moments) = self.forward::<T>(
                &planes,
                cpu_elements(x, x_layout)?,
                cpu_elements(weight, weight_layout)?,
                cpu_elements(bias, bias_layout)?,
            );
            self.moments.get_or_init(|| moments);
            Ok((T::to_cpu_storage_owned(y), x_layout.shape().clone()))
        })
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _bias: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let planes = Planes::new(x.shape())?;
        let moments = saved(&self.moments)?;
        let want_dx = x.track_op();
        let tensors = Tensors::new(x, self.relu.then_some(y), grad)?;
        let scales = weight.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        for_dtype!(x.dtype(), self.name(), T => {
            let (dx, sums) = tensors.read::<T, _>(|operands| {
                Ok(self.backward(&planes, operands, moments, &scales, want_dx))
            })?;
            let device = x.device();
            let dx = match dx {
                Some(dx) => Some(Tensor::from_vec(dx, x.shape(), device)?),
                None => None,
            };
            let parameter = |sums: Vec<f64>| {
                Tensor::from_vec(sums, planes.channels, device)?.to_dtype(weight.dtype())
            };
            Ok((dx, Some(parameter(sums.weight)?), Some(parameter(sums.bias)?)))
        })
    }
}

#[cfg(test)]
mod tests {
    use approx::assert_abs_diff_eq;
    use candle_core::{Device, Var};
    use rayon::ThreadPoolBuilder;

    use super::*;
    use crate::difference::relative_difference;
    use crate::ops::agreement::{assert_agree, noise};

    const EPSILON: f64 = 1e-5;

    fn inputs(shape: &[usize]) -> (Var, Var, Var) {
        (noise("x", shape), noise("weight", &shape[1..2]), noise("bias", &shape[1..2]))
    }

    /// Statistics of another batch.
    fn given(channels: usize) -> Statistics {
        let other = noise("other", &[2, channels, 3, 3]);
        Statistics::of(&(other.as_detached_tensor() + 0.5).unwrap()).unwrap()
    }

    #[test]
    fn a_gpu_is_asked_for_the_same() {
        for shape in [[3, 4, 5, 3], [1, 2, 7, 9], [5, 1, 1, 1]] {
            let (x, weight, bias) = inputs(&shape);
            let statistics = given(shape[1]);
            for relu in [false, true] {
                assert_agree(
                    &[&x, &weight, &bias],
                    || Ok(batch_norm(&x, &weight, &bias, EPSILON, relu)?.0),
                    || composed(&x, &weight, &bias, EPSILON, relu),
                );
                assert_agree(
                    &[&x, &weight, &bias],
                    || batch_norm_with(&x, &weight, &bias, &statistics, EPSILON, relu),
                    || composed_with(&x, &weight, &bias, &statistics, EPSILON, relu),
                );
            }
            let (ours, composed) = (Statistics::of(&x).unwrap(), Statistics::composed(&x).unwrap());
            assert_eq!(ours.count, composed.count);
            assert_close(&composed.mean, &ours.mean);
            assert_close(&composed.variance, &ours.variance);
        }
    }

    fn assert_close(a: &Tensor, b: &Tensor) {
        assert_abs_diff_eq!(relative_difference(a, b).unwrap(), 0.0, epsilon = 1e-12);
    }

    #[test]
    fn the_four_pieces_one_by_one_make_the_whole() {
        let (x, weight, bias) = inputs(&[3, 4, 5, 3]);
        // Not contiguous: pieces may be called with any tensors.
        let upstream = noise("upstream", &[3, 4, 3, 5]);
        let upstream = upstream.as_detached_tensor().transpose(2, 3).unwrap();
        for relu in [false, true] {
            let (whole, _) = batch_norm(&x, &weight, &bias, EPSILON, relu).unwrap();
            let gradients = (&whole * &upstream).unwrap().sum_all().unwrap().backward().unwrap();

            let statistics = Statistics::of(&x).unwrap();
            let y = batch_norm_with(&x, &weight, &bias, &statistics, EPSILON, relu).unwrap();
            assert_close(&y, &whole);
            let output = relu.then_some(&y);
            let ours = GradientSums::of(&x, output, &upstream, &statistics, EPSILON).unwrap();
            let composed =
                GradientSums::composed(&x, output, &upstream, &statistics, EPSILON).unwrap();
            for sums in [&ours, &composed] {
                assert_close(&sums.weight, gradients.get(&weight).unwrap());
                assert_close(&sums.bias, gradients.get(&bias).unwrap());
            }
            for take in [input_gradient, gradient::composed_input_gradient] {
                let dx = take(&x, output, &upstream, &weight, &statistics, &ours, EPSILON).unwrap();
                assert_close(&dx, gradients.get(&x).unwrap());
            }
        }
    }

    /// Output, statistics and gradients of a batch, as bits.
    fn bits(threads: usize, dtype: DType) -> Vec<u64> {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            // Planes that fill no vector, more blocks than threads, the last one smaller.
            let (x, weight, bias) = inputs(&[5, 23, 13, 17]);
            let [x, weight, bias] = [x, weight, bias]
                .map(|var| Var::from_tensor(&var.as_detached_tensor().to_dtype(dtype).unwrap()))
                .map(|var| var.unwrap());
            let (y, statistics) = batch_norm(&x, &weight, &bias, EPSILON, true).unwrap();
            let gradients = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let mut all = vec![y, statistics.mean, statistics.variance];
            all.extend([&x, &weight, &bias].map(|input| gradients.get(input).unwrap().clone()));
            let values = all.iter().flat_map(|tensor| {
                // f32 to f64 keeps every bit's meaning.
                let tensor = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
                tensor.to_vec1::<f64>().unwrap()
            });
            values.map(f64::to_bits).collect()
        })
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        for dtype in [DType::F32, DType::F64] {
            let expected = bits(1, dtype);
            for threads in [2, 3, 4] {
                assert_eq!(bits(threads, dtype), expected, "{threads} threads, {dtype:?}");
            }
        }
    }

    #[test]
    fn f32_keeps_its_digits_where_the_mean_is_large() {
        let (x, weight, bias) = inputs(&[5, 3, 9, 7]);
        let single = |tensor: Tensor| tensor.to_dtype(DType::F32).unwrap();
        // An odd mean, so that it has more digits than f32 holds.
        let x = single((x.as_detached_tensor() + 10_000.123_456_789).unwrap());
        let upstream = single(noise("upstream", &[5, 3, 9, 7]).as_detached_tensor());
        let run = |dtype: DType| {
            let var = |tensor: &Tensor| Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap();
            let (x, weight, bias) = (var(&x), var(&weight), var(&bias));
            let (y, _) = batch_norm(&x, &weight, &bias, EPSILON, false).unwrap();
            let scalar = (&y * upstream.to_dtype(dtype).unwrap()).unwrap().sum_all().unwrap();
            let gradients = scalar.backward().unwrap();
            let gradients = [&x, &weight, &bias].map(|input| gradients.get(input).unwrap().clone());
            [vec![y], gradients.to_vec()].concat()
        };
        for (single, double) in run(DType::F32).iter().zip(run(DType::F64)) {
            let error = relative_difference(single, &double).unwrap();
            assert!(error < 2e-6, "{error:.1e}");
        }
    }

    #[test]
    fn a_single_pixel_becomes_the_bias() {
        let (x, weight, bias) = inputs(&[1, 2, 1, 1]);
        let (y, statistics) = batch_norm(&x, &weight, &bias, EPSILON, false).unwrap();
        assert_eq!(
            y.flatten_all().unwrap().to_vec1::<f64>().unwrap(),
            bias.to_vec1::<f64>().unwrap()
        );
        assert_eq!(statistics.variance.to_vec1::<f64>().unwrap(), [0.0, 0.0]);
        assert_eq!(statistics.unbiased_variance().unwrap().to_vec1::<f64>().unwrap(), [0.0, 0.0]);
        // Whatever its value, the output is the same: no gradient, and a finite one.
        let gradients = y.sum_all().unwrap().backward().unwrap();
        let dx = gradients.get(&x).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(dx, [0.0, 0.0]);
    }

    #[test]
    fn a_value_that_is_not_a_number_stays_visible() {
        let (x, weight, bias) = inputs(&[2, 1, 3, 3]);
        let broken = x.as_detached_tensor().log().unwrap();
        let (y, statistics) = batch_norm(&broken, &weight, &bias, EPSILON, true).unwrap();
        assert!(y.sum_all().unwrap().to_scalar::<f64>().unwrap().is_nan());
        assert!(statistics.variance.to_vec1::<f64>().unwrap()[0].is_nan());
    }

    #[test]
    fn what_does_not_fit_is_refused_in_words() {
        let (x, weight, bias) = inputs(&[2, 3, 4, 4]);
        let refusal = |result: Result<(Tensor, Statistics)>| result.unwrap_err().to_string();
        let four = noise("four", &[4]);
        let error = refusal(batch_norm(&x, &four, &bias, EPSILON, true));
        assert!(error.contains("weight") && error.contains("[3]"), "{error}");
        let error = refusal(batch_norm(&x, &weight, &four, EPSILON, true));
        assert!(error.contains("bias") && error.contains("[4]"), "{error}");
        let single = weight.to_dtype(DType::F32).unwrap();
        let error = refusal(batch_norm(&x, &single, &bias, EPSILON, true));
        assert!(error.contains("F32") && error.contains("F64"), "{error}");
        let error = refusal(batch_norm(&weight, &weight, &bias, EPSILON, true));
        assert!(error.contains("[B, C, H, W]"), "{error}");
        let empty = Tensor::zeros((0, 3, 4, 4), DType::F64, &Device::Cpu).unwrap();
        let error = refusal(batch_norm(&empty, &weight, &bias, EPSILON, true));
        assert!(error.contains("no values"), "{error}");
        for epsilon in [0.0, -1.0, f64::NAN] {
            let error = refusal(batch_norm(&x, &weight, &bias, epsilon, true));
            assert!(error.contains("epsilon"), "{error}");
        }
        let error = batch_norm_with(&x, &weight, &bias, &given(4), EPSILON, true).unwrap_err();
        assert!(error.to_string().contains("mean [3]"), "{error}");
        let halves = [&x, &weight, &bias].map(|tensor| tensor.to_dtype(DType::BF16).unwrap());
        let error = refusal(batch_norm(&halves[0], &halves[1], &halves[2], EPSILON, true));
        assert!(error.contains("f32 and f64"), "{error}");
        let statistics = Statistics::of(&x).unwrap();
        assert!(GradientSums::of(&x, None, &weight, &statistics, EPSILON).is_err());
    }
}
