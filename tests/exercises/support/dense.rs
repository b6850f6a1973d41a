//! The [`Classifier`] as a network of stage 5.

use candle_core::{DType, Device, ModuleT, Result, Tensor};
use concise_wrapper::Network;
use datasets::{CLASSES, PIXELS};

use crate::classifier::Classifier;

/// A dense layer: `[B, 1, 28, 28]` → logits `[B, 10]`.
pub struct Dense {
    weights: Tensor,
    biases: Tensor,
}

impl Dense {
    /// A network in f64 with the names and the weights of [`Classifier::new`].
    pub fn network(seed: u64, device: &Device) -> Result<Network<Self>> {
        let network = Network::new(seed, DType::F64, device, |vb, _| {
            Ok(Self { weights: vb.get((PIXELS, CLASSES), "W")?, biases: vb.get(CLASSES, "b")? })
        })?;
        network.weights().set(&Classifier::new(seed, device)?.parameters().snapshot()?)?;
        Ok(network)
    }
}

impl ModuleT for Dense {
    fn forward_t(&self, images: &Tensor, _: bool) -> Result<Tensor> {
        images.flatten_from(1)?.matmul(&self.weights)?.broadcast_add(&self.biases)
    }
}
