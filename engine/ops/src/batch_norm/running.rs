//! Running averages of statistics, for evaluation.

use candle_core::{DType, Result, Tensor, Var, bail};

use super::Statistics;

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

impl Average<'_> {
    /// Updates the running average; the sum is taken in f64.
    fn moved(&self, momentum: f64) -> Result<()> {
        let old = self.running.as_detached_tensor().to_dtype(DType::F64)?;
        let fresh = ((self.fresh.detach() * self.scale)? * momentum)?;
        let sum = (old * (1.0 - momentum))?.add(&fresh)?;
        self.running.set(&sum.to_dtype(self.running.dtype())?)
    }
}

/// Updates every average: running = (1 − momentum) · running + momentum · scale · fresh.
///
/// This is PyTorch's convention, with its default momentum of 0.1. On a GPU one launch updates up
/// to eight averages.
///
/// # Errors
///
/// When the two tensors of an average differ in shape or device, or `fresh` is not f64.
pub fn average_all(averages: &[Average<'_>], momentum: f64) -> Result<()> {
    let does_not_fit = |of: &&Average<'_>| {
        of.running.dims() != of.fresh.dims()
            || of.fresh.dtype() != DType::F64
            || !of.running.device().same_device(of.fresh.device())
    };
    if let Some(Average { running, fresh, .. }) = averages.iter().find(does_not_fit) {
        bail!(
            "batch_norm: a running average {:?} moves by as many values, in F64 and on its device, \
             got {:?} in {:?}",
            running.dims(),
            fresh.dims(),
            fresh.dtype()
        );
    }
    #[cfg(feature = "cuda")]
    if averages.iter().any(|average| average.running.device().is_cuda()) {
        let averages = averages.iter().map(|of| (of.running.as_tensor(), of.fresh, of.scale));
        return crate::gpu::update::average(&averages.collect::<Vec<_>>(), momentum);
    }
    averages.iter().try_for_each(|average| average.moved(momentum))
}

impl Statistics {
    /// Pairs the running mean and the running variance with this batch's mean and unbiased
    /// variance.
    pub fn averages<'a>(&'a self, mean: &'a Var, variance: &'a Var) -> [Average<'a>; 2] {
        [
            Average { running: mean, fresh: &self.mean, scale: 1.0 },
            Average {
                running: variance,
                fresh: &self.variance,
                scale: self.unbiased_over_biased(),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

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
