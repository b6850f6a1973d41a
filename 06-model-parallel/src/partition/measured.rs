//! What layers cost here: measured, one after the other.

use std::time::Instant;

use candle_core::{Device, ModuleT, Result, Tensor, Var};
use concise_wrapper::{Network, Precision};
use serde::{Deserialize, Serialize};

use crate::layers::Layers;

/// Seconds that one layer takes for a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerCost {
    /// The forward pass.
    pub forward: f64,
    /// The backward pass.
    pub backward: f64,
}

impl LayerCost {
    /// Both passes.
    pub fn total(&self) -> f64 {
        self.forward + self.backward
    }

    fn least(self, other: Self) -> Self {
        Self {
            forward: self.forward.min(other.forward),
            backward: self.backward.min(other.backward),
        }
    }
}

/// What every layer costs, each pass the least of `times` tries (at least one).
///
/// `sample` is the shape of one sample of the data, such as `[1, 28, 28]`, and `rows` how many samples a
/// micro-batch has. One layer is built at a time: the whole model need not fit on the device. Run it on the
/// threads of the device ([`ComputeDevice::run`](devices::ComputeDevice::run)).
///
/// # Errors
///
/// When a layer cannot be made, or does not fit what the one before it computes.
pub fn measure(
    layers: &Layers,
    sample: &[usize],
    rows: usize,
    times: usize,
    precision: impl Into<Precision>,
    device: &Device,
) -> Result<Vec<LayerCost>> {
    let precision = precision.into();
    let shape = [&[rows], sample].concat();
    let mut x = Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(precision.weights())?;
    let of_layer = |layer| {
        let network = layers.build(layer..layer + 1, 0, precision, device)?;
        let (mut output, mut least) = once(&network, &x, layer == 0)?;
        for _ in 1..times {
            let (again, cost) = once(&network, &x, layer == 0)?;
            (output, least) = (again, least.least(cost));
        }
        x = output;
        Ok(least)
    };
    (0..layers.len()).map(of_layer).collect()
}

/// A layer's result, and what it cost. Nobody needs the gradient of the first layer's input.
fn once<M: ModuleT>(layer: &Network<M>, x: &Tensor, first: bool) -> Result<(Tensor, LayerCost)> {
    let input = if first { x.clone() } else { Var::from_tensor(x)?.into_inner() };
    layer.device().synchronize()?;
    let start = Instant::now();
    let output = layer.forward_training(&input)?;
    layer.device().synchronize()?;
    let forward = start.elapsed().as_secs_f64();
    layer.all_gradients(&output, &output.ones_like()?)?;
    layer.device().synchronize()?;
    let backward = start.elapsed().as_secs_f64() - forward;
    Ok((output.detach(), LayerCost { forward, backward }))
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use datasets::SAMPLE;

    use super::*;
    use crate::partition::cut;

    #[test]
    fn lenets_convolutions_cost_more_than_flattening() {
        let layers = Layers::lenet();
        let costs = measure(&layers, &SAMPLE, 8, 3, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(costs.len(), 5);
        let totals: Vec<f64> = costs.iter().map(LayerCost::total).collect();
        assert!(totals[1] > totals[2], "{costs:?}");
        assert_eq!(cut(&totals, 2).unwrap().len(), 2);
    }

    #[test]
    fn of_several_tries_the_least_counts() {
        let cost = |forward, backward| LayerCost { forward, backward };
        assert_eq!(cost(1.0, 4.0).least(cost(2.0, 3.0)), cost(1.0, 3.0));
        assert_eq!(cost(1.0, 4.0).total(), 5.0);
    }

    #[test]
    fn a_sample_that_does_not_fit_is_refused() {
        let layers = Layers::dense(&[6, 4, 2]).unwrap();
        assert!(measure(&layers, &[5], 2, 1, DType::F32, &Device::Cpu).is_err());
    }
}
