//! LeNet, from its parameters up.
//!
//! Shapes for a batch of B images:
//!
//! ```text
//! [B, 1, 28, 28]
//!   conv 3×3, 20 planes   W1 [20,1,3,3]  b1 [20]     → [B, 20, 26, 26]   relu
//!   average pool 2×2                                 → [B, 20, 13, 13]
//!   conv 5×5, 50 planes   W2 [50,20,5,5] b2 [50]     → [B, 50, 9, 9]     relu
//!   average pool 2×2                                 → [B, 50, 4, 4]     last row and column dropped
//!   flatten                                          → [B, 800]
//!   dense                 W3 [800,128]   b3 [128]    → [B, 128]          relu
//!   dense                 W4 [128,10]    b4 [10]     → [B, 10]
//! ```

use candle_core::{DType, Device, Module, Result, Tensor, bail};

use crate::init;
use datasets::CLASSES;
use ops::parameters::Parameters;
use ops::{conv2d_relu_pool, flatten, linear, linear_relu};

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

/// One replica of LeNet.
#[derive(Debug)]
pub struct Lenet {
    parameters: Parameters,
}

impl Lenet {
    /// A replica with fresh weights, N(0, 0.01²), and zero biases.
    ///
    /// # Errors
    ///
    /// When the tensors cannot be made on `device`.
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

    /// A replica that uses these parameters.
    ///
    /// # Errors
    ///
    /// When they are not LeNet's: the message names the first that differs.
    pub fn with_parameters(parameters: Parameters) -> Result<Self> {
        if parameters.len() != SHAPES.len() {
            bail!("LeNet has {} parameters, got {}", SHAPES.len(), parameters.len());
        }
        for (&(name, shape), parameter) in SHAPES.iter().zip(&parameters) {
            if parameter.name != name || parameter.value.dims() != shape {
                bail!(
                    "LeNet's parameter {name} is {shape:?}, got {} {:?}",
                    parameter.name,
                    parameter.value.dims()
                );
            }
        }
        Ok(Self { parameters })
    }

    /// The replica's parameters, first layer first.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The logits of a batch: `[B, 1, 28, 28]` → `[B, 10]`.
    ///
    /// # Errors
    ///
    /// When `images` has another shape or another dtype than the parameters.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let values: Vec<&Tensor> = self.parameters.iter().map(|p| p.value.as_tensor()).collect();
        let Ok(values) = values.try_into() else { bail!("LeNet has {} parameters", SHAPES.len()) };
        forward(values, images)
    }
}

impl Module for Lenet {
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        self.forward(images)
    }
}

/// The logits of a batch, as a function of LeNet's parameters in their order: `[B, 1, 28, 28]` →
/// `[B, 10]`.
///
/// # Errors
///
/// When the shapes or dtypes do not fit.
// ANCHOR: forward
pub fn forward(parameters: [&Tensor; 8], images: &Tensor) -> Result<Tensor> {
    let [w1, b1, w2, b2, w3, b3, w4, b4] = parameters;
    let x = conv2d_relu_pool(images, w1, b1, 2)?;
    let x = conv2d_relu_pool(&x, w2, b2, 2)?;
    let x = flatten(&x)?;
    let x = linear_relu(&x, w3, b3)?;
    linear(&x, w4, b4)
}
// ANCHOR_END: forward

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_images_becomes_a_batch_of_logits() {
        let lenet = Lenet::new(1, DType::F32, &Device::Cpu).unwrap();
        let images = Tensor::zeros((3, 1, 28, 28), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(lenet.forward(&images).unwrap().dims(), [3, CLASSES]);
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
