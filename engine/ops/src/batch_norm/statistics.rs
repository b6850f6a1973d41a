//! Mean and variance of every channel: of a batch, of several batches, and their running averages.

use candle_core::{DType, Device, Result, Tensor, Var, bail};

use crate::kernels::gpu;
use crate::kernels::sums::Moments;

/// Mean and variance of each channel, `[C]` and `[C]`, in f64 for every type of images and without a gradient.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// The mean, `[C]`.
    pub mean: Tensor,
    /// The mean squared distance from the mean, `[C]`, which normalises a batch: not the unbiased estimate.
    pub variance: Tensor,
    /// The number of values of one channel, B·H·W.
    pub count: usize,
}

impl Statistics {
    /// Makes the statistics of moments in plain memory, over `count` values each.
    pub(super) fn new(moments: &[Moments], count: usize) -> Result<Self> {
        let tensor =
            |of: fn(&Moments) -> f64| Tensor::from_iter(moments.iter().map(of), &Device::Cpu);
        Ok(Self { mean: tensor(|of| of.mean)?, variance: tensor(|of| of.variance)?, count })
    }

    pub(super) fn moments(&self) -> [&Tensor; 2] {
        [&self.mean, &self.variance]
    }

    pub(super) fn to_moments(&self) -> Result<Vec<Moments>> {
        let values = |of: &Tensor| of.detach().to_dtype(DType::F64)?.to_vec1::<f64>();
        let of_channels = values(&self.mean)?.into_iter().zip(values(&self.variance)?);
        Ok(of_channels.map(|(mean, variance)| Moments { mean, variance }).collect())
    }

    pub(super) fn check(&self, channels: usize) -> Result<()> {
        check_channels("mean", &self.mean, channels)?;
        check_channels("variance", &self.variance, channels)
    }

    /// Merges the statistics of several batches, such as each rank's share of a global batch.
    ///
    /// The mean is the mean of the means, weighted by counts. The variance is the mean of the variances plus the variance
    /// of the means (Chan, Golub, LeVeque 1983). The parts are added in the order given, as differences from the first
    /// mean: equal means merge into exactly that mean. Fails when there are no parts, or they differ in channels.
    pub fn merge(parts: &[Self]) -> Result<Self> {
        let [first, ..] = parts else { bail!("batch_norm: no statistics to merge") };
        let count: usize = parts.iter().map(|part| part.count).sum();
        let weighted = |term: &dyn Fn(&Self) -> Result<Tensor>| {
            parts.iter().try_fold(first.mean.zeros_like()?, |sum, part| {
                crate::sum(&sum, &(term(part)? * (part.count as f64 / count as f64))?)
            })
        };
        let minus_first = first.mean.neg()?;
        let from_first = weighted(&|part| crate::sum(&part.mean, &minus_first))?;
        let mean = crate::sum(&first.mean, &from_first)?;
        let minus_mean = mean.neg()?;
        let variance = weighted(&|part| {
            crate::sum(&part.variance, &crate::sum(&part.mean, &minus_mean)?.sqr()?)
        })?;
        Ok(Self { mean, variance, count })
    }

    /// Returns the unbiased estimate of the variance: n / (n − 1) · variance, or 0 for one value.
    pub fn unbiased_variance(&self) -> Result<Tensor> {
        &self.variance * self.unbiased_over_biased()
    }

    fn unbiased_over_biased(&self) -> f64 {
        self.count as f64 / self.count.saturating_sub(1).max(1) as f64
    }

    /// Pairs the running mean and variance with this batch's mean and unbiased variance.
    pub fn averages<'a>(&'a self, mean: &'a Var, variance: &'a Var) -> [Average<'a>; 2] {
        let average = |running, fresh, scale| Average { running, fresh, scale };
        let scale = self.unbiased_over_biased();
        [average(mean, &self.mean, 1.0), average(variance, &self.variance, scale)]
    }
}

pub(super) fn check_channels(name: &str, tensor: &Tensor, channels: usize) -> Result<()> {
    if tensor.dims() != [channels] {
        let found = tensor.dims();
        bail!("batch_norm: {channels} channels need a {name} [{channels}], got {found:?}");
    }
    Ok(())
}

/// A running average and the tensor that is averaged into it.
#[derive(Clone, Copy, Debug)]
pub struct Average<'a> {
    /// The average so far, `[C]`, in f32 or f64.
    pub running: &'a Var,
    /// The new values, `[C]`, in f64.
    pub fresh: &'a Tensor,
    /// The factor that multiplies the new values before the average.
    pub scale: f64,
}

/// Updates every average: running = (1 − momentum) · running + momentum · scale · fresh.
///
/// The convention is PyTorch's. A GPU updates eight averages at once. Fails when the tensors of one differ in shape or device.
pub fn average_all(averages: &[Average<'_>], momentum: f64) -> Result<()> {
    let does_not_fit = |of: &&Average<'_>| {
        of.running.dims() != of.fresh.dims()
            || of.fresh.dtype() != DType::F64
            || !of.running.device().same_device(of.fresh.device())
    };
    if let Some(Average { running, fresh, .. }) = averages.iter().find(does_not_fit) {
        let (running, (fresh, dtype)) = (running.dims(), (fresh.dims(), fresh.dtype()));
        bail!(
            "batch_norm: a running average {running:?} moves by as many values, in F64 and on its \
             device, got {fresh:?} in {dtype:?}"
        );
    }
    if averages.iter().any(|average| average.running.device().is_cuda()) {
        let averages = averages.iter().map(|of| (of.running.as_tensor(), of.fresh, of.scale));
        return gpu::average(&averages.collect::<Vec<_>>(), momentum);
    }
    averages.iter().try_for_each(|Average { running, fresh, scale }| {
        let old = running.as_detached_tensor().to_dtype(DType::F64)?;
        let fresh = ((fresh.detach() * *scale)? * momentum)?;
        let sum = (old * (1.0 - momentum))?.add(&fresh)?;
        running.set(&sum.to_dtype(running.dtype())?)
    })
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
    fn equal_means_merge_into_exactly_that_mean() {
        for counts in [[1, 1, 1], [5, 1, 3], [7, 11, 100]] {
            for mean in [0.1, 1.0 / 3.0, -123.456, 1e-300] {
                let (mean, variance) = (tensor(&[mean]), tensor(&[0.0]));
                let part =
                    |count| Statistics { mean: mean.clone(), variance: variance.clone(), count };
                let merged = Statistics::merge(&counts.map(part)).unwrap();
                assert_eq!(merged.mean.to_vec1::<f64>().unwrap(), mean.to_vec1::<f64>().unwrap());
                assert_eq!(merged.variance.to_vec1::<f64>().unwrap(), [0.0], "{counts:?}");
            }
        }
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

    fn tensor(values: &[f64]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    #[test]
    fn the_variance_is_the_unbiased_one() {
        let batch = Statistics { mean: tensor(&[1.0]), variance: tensor(&[3.0]), count: 4 };
        let mean = Var::from_tensor(&tensor(&[0.0])).unwrap();
        let variance = Var::from_tensor(&Tensor::new(&[1f32], &Device::Cpu).unwrap()).unwrap();
        average_all(&batch.averages(&mean, &variance), 0.5).unwrap();
        assert_eq!(mean.to_vec1::<f64>().unwrap(), [0.5]);
        assert_eq!(variance.to_vec1::<f32>().unwrap(), [2.5]);
        let single = Statistics { count: 1, ..batch };
        assert_eq!(single.unbiased_variance().unwrap().to_vec1::<f64>().unwrap(), [3.0]);
    }

    #[test]
    fn another_shape_or_type_is_refused_and_nothing_moved() {
        let [first, second] = [1.0, 2.0].map(|value| Var::from_tensor(&tensor(&[value])).unwrap());
        let fresh = tensor(&[5.0]);
        let refused = |other: &Tensor| {
            let of = |running, fresh| Average { running, fresh, scale: 1.0 };
            average_all(&[of(&first, &fresh), of(&second, other)], 0.1).unwrap_err().to_string()
        };
        let error = refused(&tensor(&[5.0, 6.0]));
        assert!(error.contains("[1] moves by as many values"), "{error}");
        let error = refused(&fresh.to_dtype(DType::F32).unwrap());
        assert!(error.contains("got [1] in F32"), "{error}");
        assert_eq!(first.to_vec1::<f64>().unwrap(), [1.0]);
    }
}
