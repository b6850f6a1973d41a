//! Mean and variance of every channel.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, WithDType, bail};
use rayon::prelude::*;

use super::loops::mean_and_squares;
use super::planes::Planes;
use crate::Element;
use crate::element::{for_dtype, lock};
use crate::simd::vectorised;

/// Mean and variance of each channel over `count` values, `[C]` and `[C]`. Both are f64 for every
/// type of images, because merging and averaging then lose no digits. They carry no gradient.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// The mean, `[C]`.
    pub mean: Tensor,
    /// The mean squared distance from the mean, `[C]`. A batch is normalised with this variance,
    /// not with the unbiased estimate.
    pub variance: Tensor,
    /// The number of values of one channel, B·H·W.
    pub count: usize,
}

impl Statistics {
    /// Implements [`of`](Self::of) on the CPU, for images in f32 or f64.
    pub(super) fn of_cpu(x: &Tensor, planes: &Planes) -> Result<Self> {
        let x = x.contiguous()?;
        for_dtype!(x.dtype(), "batch_norm", T => {
            let locked = lock(&[&x]);
            let [x] = locked.elements::<T, 1>()?;
            let blocks = planes.blocks();
            let moments = blocks
                .par_iter()
                .map(|channels| vectorised(#[inline(always)] || Moments::of_block(planes, x, channels)))
                .collect();
            Moments::concatenated(moments, planes.count()).to_statistics()
        })
    }

    /// Merges the statistics of several batches into one, such as each rank's share of a global
    /// batch.
    ///
    /// The mean of all values is the mean of the means, weighted by counts. The variance of all
    /// values is the mean of the variances plus the variance of the means (Chan, Golub, LeVeque
    /// 1983, for many parts at once). The parts are added in the order given, so the same parts
    /// give the same bits.
    ///
    /// # Errors
    ///
    /// When there are no parts, or they differ in channels.
    pub fn merge(parts: &[Self]) -> Result<Self> {
        let [first, ..] = parts else { bail!("batch_norm: no statistics to merge") };
        let count: usize = parts.iter().map(|part| part.count).sum();
        let weighted = |terms: &mut dyn Iterator<Item = Result<Tensor>>| {
            let zero = first.mean.zeros_like();
            terms.zip(parts).try_fold(zero?, |sum, (term, part)| {
                crate::sum(&sum, &(term? * (part.count as f64 / count as f64))?)
            })
        };
        let mean = weighted(&mut parts.iter().map(|part| Ok(part.mean.clone())))?;
        let minus_mean = mean.neg()?;
        let within_and_between =
            |part: &Self| crate::sum(&part.variance, &crate::sum(&part.mean, &minus_mean)?.sqr()?);
        let variance = weighted(&mut parts.iter().map(within_and_between))?;
        Ok(Self { mean, variance, count })
    }

    /// Returns the unbiased estimate of the distribution's variance: n / (n − 1) · variance.
    ///
    /// A single value gives no estimate of a variance; the result is 0 then.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn unbiased_variance(&self) -> Result<Tensor> {
        &self.variance * self.unbiased_over_biased()
    }

    /// n / (n − 1), or 1 for a single value.
    pub(super) fn unbiased_over_biased(&self) -> f64 {
        self.count as f64 / self.count.saturating_sub(1).max(1) as f64
    }

    pub(super) fn to_moments(&self, channels: usize) -> Result<Moments> {
        let values = |name: &str, tensor: &Tensor| {
            check_channels(name, tensor, channels)?;
            tensor.detach().to_dtype(DType::F64)?.to_vec1()
        };
        Ok(Moments {
            mean: values("mean", &self.mean)?,
            variance: values("variance", &self.variance)?,
            count: self.count,
        })
    }
}

/// Checks that a tensor has one value for each channel.
pub(super) fn check_channels(name: &str, tensor: &Tensor, channels: usize) -> Result<()> {
    if tensor.dims() != [channels] {
        bail!(
            "batch_norm: {channels} channels need a {name} [{channels}], got {:?}",
            tensor.dims()
        );
    }
    Ok(())
}

/// [`Statistics`] in plain memory, for all channels or for a block of them.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    pub(super) mean: Vec<f64>,
    pub(super) variance: Vec<f64>,
    pub(super) count: usize,
}

/// Computes mean and variance of a channel, value by value in f64.
///
/// The sums of [`mean_and_squares`] are sums of `T`: in f32, the squares of numbers above 1e19
/// overflow. An infinite variance would turn the whole normalised channel into zeros. If a value is
/// infinite, the mean is infinite and the variance NaN.
#[cold]
fn by_definition<T: Element>(planes: &Planes, x: &[T], channel: usize) -> (f64, f64) {
    let values = || planes.of(x, &(channel..channel + 1)).flatten().map(|&x| WithDType::to_f64(x));
    let count = planes.count() as f64;
    let mean = values().sum::<f64>() / count;
    let squares = values().map(|x| (x - mean) * (x - mean)).sum::<f64>();
    (mean, squares / count)
}

impl Moments {
    /// Computes the moments of a block's channels.
    ///
    /// Each plane is one more part that is merged into its channel's sums, by the pairwise formula
    /// of Chan, Golub and LeVeque. Let `before` be the number of earlier planes, and δ the distance
    /// from the old mean to the plane's mean. The plane moves the mean by δ / (before + 1). It adds
    /// δ² · plane · before / (before + 1) to the squares.
    #[inline(always)]
    pub(super) fn of_block<T: Element>(planes: &Planes, x: &[T], channels: &Range<usize>) -> Self {
        let mut mean = vec![0.0; channels.len()];
        let mut variance = vec![0.0; channels.len()];
        for (before, image) in planes.of(x, channels).enumerate() {
            let share = 1.0 / (before + 1) as f64;
            let spread = planes.plane as f64 * before as f64 * share;
            for (channel, plane) in image.chunks_exact(planes.plane).enumerate() {
                let (plane_mean, squares) = mean_and_squares(plane);
                let distance = plane_mean - mean[channel];
                mean[channel] += distance * share;
                variance[channel] += squares + distance * distance * spread;
            }
        }
        let count = planes.count();
        for ((channel, mean), variance) in channels.clone().zip(&mut mean).zip(&mut variance) {
            *variance /= count as f64;
            if !variance.is_finite() {
                (*mean, *variance) = by_definition(planes, x, channel);
            }
        }
        Self { mean, variance, count }
    }

    pub(super) fn concatenated(blocks: Vec<Self>, count: usize) -> Self {
        let mut all = Self { mean: Vec::new(), variance: Vec::new(), count };
        for block in blocks {
            all.mean.extend(block.mean);
            all.variance.extend(block.variance);
        }
        all
    }

    /// The moments of a block's channels.
    pub(super) fn block(&self, channels: &Range<usize>) -> Self {
        Self {
            mean: self.mean[channels.clone()].to_vec(),
            variance: self.variance[channels.clone()].to_vec(),
            count: self.count,
        }
    }

    /// 1 / √(variance + ε) of a channel.
    #[inline(always)]
    pub(super) fn inverse_deviation(&self, channel: usize, epsilon: f64) -> f64 {
        1.0 / (self.variance[channel] + epsilon).sqrt()
    }

    pub(super) fn to_statistics(&self) -> Result<Statistics> {
        let tensor = |values: &[f64]| Tensor::new(values, &Device::Cpu);
        Ok(Statistics {
            mean: tensor(&self.mean)?,
            variance: tensor(&self.variance)?,
            count: self.count,
        })
    }
}

#[cfg(test)]
mod tests {
    use approx::assert_abs_diff_eq;

    use super::*;
    use crate::difference::relative_difference;
    use crate::tests::agreement::noise;

    #[test]
    fn statistics_of_parts_merge_into_those_of_all() {
        let x = noise("x", &[7, 3, 4, 5]);
        // The means of the parts are far apart, and the variance between them counts.
        let offsets =
            Tensor::arange(0.0, 7.0, &Device::Cpu).unwrap().reshape((7, 1, 1, 1)).unwrap();
        let x = x.broadcast_add(&offsets).unwrap();
        let parts: Vec<Statistics> = [(0, 1), (1, 4), (5, 2)]
            .map(|(first, images)| Statistics::of(&x.narrow(0, first, images).unwrap()).unwrap())
            .into();
        let (merged, whole) = (Statistics::merge(&parts).unwrap(), Statistics::of(&x).unwrap());
        assert_eq!(merged.count, whole.count);
        for (merged, whole) in [(&merged.mean, &whole.mean), (&merged.variance, &whole.variance)] {
            assert_abs_diff_eq!(relative_difference(merged, whole).unwrap(), 0.0, epsilon = 1e-14);
        }
        assert!(Statistics::merge(&[]).is_err());
    }

    #[test]
    fn f32_keeps_its_digits_where_the_mean_is_large() {
        // Deviations of 1 around 10 000 leave four digits in f32, and all four must count.
        let x = (noise("x", &[5, 2, 9, 7]).as_detached_tensor() + 1e4).unwrap();
        let x = x.to_dtype(DType::F32).unwrap();
        let single = Statistics::of(&x).unwrap();
        let double = Statistics::of(&x.to_dtype(DType::F64).unwrap()).unwrap();
        for (single, double) in [(&single.mean, &double.mean), (&single.variance, &double.variance)]
        {
            let error = relative_difference(single, double).unwrap();
            assert!(error < 1e-6, "{error:.1e}");
        }
        // The relative error of the mean would pass even if the mean were rounded to f32.
        let apart = (single.mean - double.mean).unwrap().abs().unwrap().max(0).unwrap();
        assert!(apart.to_scalar::<f64>().unwrap() < 1e-6);
    }
}
