//! LeNet, from its parameters up.
//!
//! | layer | parameters | output for B images `[B, 1, 28, 28]` |
//! | --- | --- | --- |
//! | convolution 3×3, relu | W1 `[20, 1, 3, 3]`, b1 `[20]` | `[B, 20, 26, 26]` |
//! | average pooling 2×2 | | `[B, 20, 13, 13]` |
//! | convolution 5×5, relu | W2 `[50, 20, 5, 5]`, b2 `[50]` | `[B, 50, 9, 9]` |
//! | average pooling 2×2, without the last row and column | | `[B, 50, 4, 4]` |
//! | flatten | | `[B, 800]` |
//! | linear, relu | W3 `[800, 128]`, b3 `[128]` | `[B, 128]` |
//! | linear | W4 `[128, 10]`, b4 `[10]` | `[B, 10]` |

use candle_core::{DType, Device, Module, Result, Tensor, bail};

use crate::{init, layers};
use datasets::CLASSES;
use model_state::parameters::Parameters;
use ops::flatten;

/// The standard deviation of the initial weights.
pub const WEIGHT_STD: f64 = 0.01;

/// Names and shapes of LeNet's parameters, first layer first.
// ANCHOR: shapes
pub const SHAPES: [(&str, &[usize]); 8] = [
    ("W1", &[20, 1, 3, 3]),
    ("b1", &[20]),
    ("W2", &[50, 20, 5, 5]),
    ("b2", &[50]),
    ("W3", &[800, 128]),
    ("b3", &[128]),
    ("W4", &[128, CLASSES]),
    ("b4", &[CLASSES]),
];
// ANCHOR_END: shapes

// ANCHOR: layers
/// The implementation of a network's layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Layers {
    /// Loops that follow the definitions; slow, and on the CPU only
    Plain,
    /// The operations that training uses
    #[default]
    Fast,
}

/// The layers of a network, as functions. You can replace one function, and keep all others.
#[derive(Clone, Copy, Debug)]
pub struct LayerFunctions {
    /// Convolution of x with weight and bias, relu, and average pooling 2×2.
    pub conv2d_relu_pool: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    /// Linear layer of x with weight and bias, and relu.
    pub linear_relu: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    /// Linear layer of x with weight and bias.
    pub linear: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    /// Loss of logits and labels, summed over the samples.
    pub cross_entropy: fn(&Tensor, &Tensor) -> Result<Tensor>,
}

impl From<Layers> for LayerFunctions {
    fn from(layers: Layers) -> Self {
        match layers {
            Layers::Plain => Self {
                conv2d_relu_pool: |x, weight, bias| {
                    let y = layers::conv2d(x, weight, bias)?;
                    layers::avg_pool2d(&layers::relu(&y)?)
                },
                linear_relu: |x, weight, bias| layers::relu(&layers::linear(x, weight, bias)?),
                linear: layers::linear,
                cross_entropy: layers::cross_entropy,
            },
            Layers::Fast => Self {
                conv2d_relu_pool: |x, weight, bias| ops::conv2d_relu_pool(x, weight, bias, 2),
                linear_relu: ops::linear_relu,
                linear: ops::linear,
                cross_entropy: ops::cross_entropy,
            },
        }
    }
}
// ANCHOR_END: layers

// ANCHOR: model
/// One replica of LeNet.
#[derive(Debug)]
pub struct Lenet {
    parameters: Parameters,
    layers: LayerFunctions,
}

impl Lenet {
    /// Makes a replica with initial weights from N(0, 0.01²), zero biases and fast layers. Fails
    /// when the tensors cannot be made on `device`.
    pub fn new(seed: u64, dtype: DType, device: &Device) -> Result<Self> {
        let parameters = SHAPES.iter().map(|&(name, shape)| {
            if name.starts_with('W') {
                init::normal(name, shape, WEIGHT_STD, seed, dtype, device)
            } else {
                init::zeros(name, shape, dtype, device)
            }
        });
        Self::with_parameters(Parameters::new(parameters.collect::<Result<_>>()?)?)
    }

    /// Makes a replica of these parameters, with fast layers. Fails when a name or a shape is not
    /// LeNet's. The message names the first parameter that differs.
    pub fn with_parameters(parameters: Parameters) -> Result<Self> {
        if parameters.len() != SHAPES.len() {
            bail!("LeNet has {} parameters, got {}", SHAPES.len(), parameters.len());
        }
        for (&(name, shape), parameter) in SHAPES.iter().zip(parameters.iter()) {
            if parameter.name != name || parameter.value.dims() != shape {
                bail!(
                    "LeNet's parameter {name} is {shape:?}, got {} {:?}",
                    parameter.name,
                    parameter.value.dims()
                );
            }
        }
        Ok(Self { parameters, layers: Layers::Fast.into() })
    }

    /// Chooses the layers: an implementation, or a function for each. The parameters stay the same.
    #[must_use]
    pub fn with_layers(self, layers: impl Into<LayerFunctions>) -> Self {
        Self { layers: layers.into(), ..self }
    }

    /// The replica's parameters, first layer first.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}
// ANCHOR_END: model

// ANCHOR: forward
impl Lenet {
    /// Computes the logits of a batch: `[B, 1, 28, 28]` → `[B, 10]`. Fails when `images` is not
    /// `[B, 1, 28, 28]` or has another dtype than the parameters, and with plain layers on a GPU.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let values: Vec<&Tensor> = self.parameters.iter().map(|p| p.value.as_tensor()).collect();
        let [w1, b1, w2, b2, w3, b3, w4, b4] = values[..] else { bail!("LeNet has 8 parameters") };
        let layers = &self.layers;
        let x = (layers.conv2d_relu_pool)(images, w1, b1)?;
        let x = (layers.conv2d_relu_pool)(&x, w2, b2)?;
        let x = flatten(&x)?;
        let x = (layers.linear_relu)(&x, w3, b3)?;
        (layers.linear)(&x, w4, b4)
    }

    /// Computes the loss of a batch: the cross-entropy, summed over the samples. `[B, 10]`, `[B]`
    /// (u32) → a scalar. Fails when the shapes do not fit, and with plain layers on a GPU.
    pub fn loss(&self, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
        (self.layers.cross_entropy)(logits, labels)
    }
}
// ANCHOR_END: forward

impl Module for Lenet {
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        self.forward(images)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_images_becomes_a_batch_of_logits() {
        let images = Tensor::zeros((3, 1, 28, 28), DType::F32, &Device::Cpu).unwrap();
        for layers in [Layers::Plain, Layers::Fast] {
            let lenet = Lenet::new(1, DType::F32, &Device::Cpu).unwrap().with_layers(layers);
            assert_eq!(lenet.forward(&images).unwrap().dims(), [3, CLASSES]);
        }
    }

    #[test]
    fn parameters_of_another_model_are_refused_by_name() {
        let mut parameters: Vec<_> =
            Lenet::new(1, DType::F32, &Device::Cpu).unwrap().parameters.iter().cloned().collect();
        parameters[2] = init::zeros("W2", &[50, 20, 3, 3], DType::F32, &Device::Cpu).unwrap();
        let error = Lenet::with_parameters(Parameters::new(parameters).unwrap()).unwrap_err();
        assert!(error.to_string().contains("W2"), "{error}");
    }
}
