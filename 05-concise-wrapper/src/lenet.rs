//! LeNet of stage 1, built of named tensors: the wrappers of this stage can wrap it.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_nn::init::{Init, ZERO};
use ops::{conv2d_relu_pool, flatten, linear, linear_relu};
use single_gpu::lenet::{SHAPES, WEIGHT_STD};

// ANCHOR: lenet
/// LeNet: `[B, 1, 28, 28]` → `[B, 10]`, with the names, shapes, initial weights and results of stage 1.
pub struct LeNet {
    values: [Tensor; SHAPES.len()],
}

/// Returns the initial distribution of a tensor: weights are N(0, 0.01²), biases are zero.
pub fn init(name: &str) -> Init {
    match name.starts_with('W') {
        true => Init::Randn { mean: 0.0, stdev: WEIGHT_STD },
        false => ZERO,
    }
}

impl LeNet {
    /// Makes a network.
    pub fn new(vb: &VarBuilder<'_>) -> Result<Self> {
        let value = |(name, shape): (&str, &[usize])| vb.get_with_hints(shape, name, init(name));
        let [w1, b1, w2, b2, w3, b3, w4, b4] = SHAPES.map(value);
        Ok(Self { values: [w1?, b1?, w2?, b2?, w3?, b3?, w4?, b4?] })
    }
}

impl Module for LeNet {
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let [w1, b1, w2, b2, w3, b3, w4, b4] = &self.values;
        let x = conv2d_relu_pool(images, w1, b1, 2)?;
        let x = conv2d_relu_pool(&x, w2, b2, 2)?;
        let x = flatten(&x)?;
        let x = linear_relu(&x, w3, b3)?;
        linear(&x, w4, b4)
    }
}
// ANCHOR_END: lenet
