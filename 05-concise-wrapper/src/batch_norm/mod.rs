//! Batch normalisation, and whose batch it is.
//!
//! In training every channel is normalised by the mean and variance of *the batch*. On several devices
//! that word has three meanings:
//!
//! | | statistics of | equal to one device? |
//! | --- | --- | --- |
//! | local | the device's own shard, as PyTorch's DDP does by default | no: the batch became smaller |
//! | synchronised | the global batch: devices exchange sums in every layer, twice | yes |
//! | by shard | each of a fixed number of shards | the same bits on any number of devices |
//!
//! So data parallelism does *not* give the numbers of one device once batch norm is in the network, unless
//! its statistics are synchronised. [`Norms`] says which of the three a network uses; all its layers share
//! one.
//!
//! In evaluation there may be no batch, so a channel is normalised by *running statistics*, to which each training
//! step adds a tenth of its own. They lag behind weights that move fast: [`Norms::test_by_batch`] tells by how much.

mod fold;
mod norms;
mod synchronised;

use candle_core::{DType, ModuleT, Result, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use ops::batch_norm::{Statistics, batch_norm, batch_norm_with};

pub use norms::Norms;

use crate::precision::Precision;
use norms::Sharing;

/// Added to variances, so that a constant channel is not divided by zero; PyTorch's default.
const EPSILON: f64 = 1e-5;

/// The weight of the newest batch in the running statistics; PyTorch's default.
const MOMENTUM: f64 = 0.1;

/// One layer: learnt scale and shift, running statistics, and the relu that follows, if one does.
///
/// `[B, C, H, W]` → `[B, C, H, W]`.
pub struct BatchNorm {
    weight: Tensor,
    bias: Tensor,
    running_mean: Var,
    running_variance: Var,
    relu: bool,
    norms: Norms,
    layer: usize,
}

impl BatchNorm {
    /// A layer for `channels` channels: `weight` starts at 1, `bias` at 0, `running_mean` at 0,
    /// `running_var` at 1.
    ///
    /// # Errors
    ///
    /// When the tensors cannot be made.
    pub fn new(channels: usize, relu: bool, norms: &Norms, vb: &VarBuilder<'_>) -> Result<Self> {
        let vb = vb.to_dtype(Precision::from(vb.dtype()).weights());
        let constant = |name, value| vb.get_with_hints(channels, name, Init::Const(value));
        let (weight, bias) = (constant("weight", 1.0)?, constant("bias", 0.0)?);
        let running = |name, value| {
            let tensor = constant(name, value)?;
            if !tensor.is_variable() {
                bail!("{name} has to be a variable, which training can change");
            }
            Var::from_tensor(&tensor)
        };
        let running_mean = running("running_mean", 0.0)?;
        let running_variance = running("running_var", 1.0)?;
        let layer = norms.add(running_mean.clone(), running_variance.clone());
        let norms = norms.clone();
        Ok(Self { weight, bias, running_mean, running_variance, relu, norms, layer })
    }

    fn train(&self, x: &Tensor) -> Result<Tensor> {
        let sharing = self.norms.lock().sharing.clone();
        let (y, statistics) = match sharing {
            Sharing::Local | Sharing::ByShard => {
                batch_norm(x, &self.weight, &self.bias, EPSILON, self.relu)?
            }
            Sharing::Synchronised(communicator) => {
                let counts = !self.norms.lock().stand_in;
                let (weight, bias) = (&self.weight, &self.bias);
                synchronised::batch_norm(x, weight, bias, self.relu, communicator, counts)?
            }
        };
        self.norms.saw(self.layer, statistics)?;
        Ok(y)
    }

    fn evaluate(&self, x: &Tensor) -> Result<Tensor> {
        if self.norms.lock().tests_by_batch {
            return Ok(batch_norm(x, &self.weight, &self.bias, EPSILON, self.relu)?.0);
        }
        self.norms.average()?;
        let in_f64 = |running: &Var| running.as_detached_tensor().to_dtype(DType::F64);
        let statistics = Statistics {
            mean: in_f64(&self.running_mean)?,
            variance: in_f64(&self.running_variance)?,
            count: 1,
        };
        batch_norm_with(x, &self.weight, &self.bias, &statistics, EPSILON, self.relu)
    }
}

impl ModuleT for BatchNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train { self.train(x) } else { self.evaluate(x) }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Module as _};
    use ops::difference::relative_difference;

    use super::*;
    use crate::Network;

    fn images() -> Tensor {
        let values: Vec<f64> = (0..96).map(|i| f64::from(i * 37 % 101) / 7.0).collect();
        Tensor::from_vec(values, (4, 2, 3, 4), &Device::Cpu).unwrap()
    }

    fn network() -> Network<BatchNorm> {
        let build = |vb: &VarBuilder<'_>, norms: &Norms| BatchNorm::new(2, true, norms, vb);
        Network::new(1, DType::F64, &Device::Cpu, build).unwrap()
    }

    fn running(network: &Network<BatchNorm>) -> Vec<Vec<f64>> {
        let buffers = network.weights().buffers.iter();
        buffers.map(|buffer| buffer.tensor.to_vec1().unwrap()).collect()
    }

    #[test]
    fn a_step_moves_running_statistics_by_a_tenth_and_a_test_uses_them() {
        let (network, images) = (network(), images());
        let trained = network.forward_training(&images).unwrap();
        let seen = Statistics::of(&images).unwrap();
        let [mean, variance] = [&seen.mean, &seen.unbiased_variance().unwrap()]
            .map(|tensor| tensor.to_vec1::<f64>().unwrap());
        let [means, variances] = &running(&network)[..] else { panic!("two buffers") };
        for channel in 0..2 {
            assert!((means[channel] - 0.1 * mean[channel]).abs() < 1e-12);
            assert!((variances[channel] - (0.9 + 0.1 * variance[channel])).abs() < 1e-12);
        }
        let tested = network.forward(&images).unwrap();
        assert!(relative_difference(&tested, &trained).unwrap() > 0.1);
    }

    #[test]
    fn tested_by_batch_a_network_and_its_replicas_normalise_as_in_training() {
        let (network, images) = (network(), images());
        network.norms().test_by_batch();
        let before = running(&network);
        for network in [&network, &network.replica(&Device::Cpu).unwrap()] {
            let tested = network.forward(&images).unwrap();
            assert_eq!(running(network), before);
            let trained = network.forward_training(&images).unwrap();
            assert_eq!(relative_difference(&tested, &trained).unwrap(), 0.0);
            assert_ne!(running(network), before);
        }
    }
}
