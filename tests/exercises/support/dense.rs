//! The [`Classifier`] as a network of stage 5, and beside it a narrow ResNet-18.

use candle_core::{DType, Device, ModuleT, Result, Tensor};
use concise_wrapper::Network;
use concise_wrapper::resnet::ResNet18;
use datasets::{CLASSES, PIXELS};

use crate::classifier::Classifier;

/// A module in f64: `[B, 1, 28, 28]` → logits `[B, 10]`.
pub enum Layers {
    /// A dense layer, of weights and biases.
    Dense(Tensor, Tensor),
    /// In a run.
    ResNet(ResNet18),
}

impl Layers {
    /// A ResNet-18 of this width.
    pub fn resnet(seed: u64, width: usize, device: &Device) -> Result<Network<Self>> {
        Network::new(seed, DType::F64, device, move |vb, norms| {
            Ok(Self::ResNet(ResNet18::new(width, norms, vb)?))
        })
    }

    /// A dense layer with the names and the weights of [`Classifier::new`].
    pub fn dense(seed: u64, device: &Device) -> Result<Network<Self>> {
        let network = Network::new(seed, DType::F64, device, |vb, _| {
            Ok(Self::Dense(vb.get((PIXELS, CLASSES), "W")?, vb.get(CLASSES, "b")?))
        })?;
        network.weights().set(&Classifier::new(seed, device)?.parameters().snapshot()?)?;
        Ok(network)
    }
}

impl ModuleT for Layers {
    fn forward_t(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        match self {
            Self::Dense(weights, biases) => {
                images.flatten_from(1)?.matmul(weights)?.broadcast_add(biases)
            }
            Self::ResNet(network) => network.forward_t(images, train),
        }
    }
}
