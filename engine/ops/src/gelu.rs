//! GELU: x times the probability that a normal number is below x.

use candle_core::{Result, Tensor};

/// `x · Φ(x)`, exactly, of any shape: PyTorch's `gelu`.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    x.gelu_erf()
}

/// GELU by its approximation with a hyperbolic tangent, of any shape: PyTorch's `gelu(approximate="tanh")`.
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    x.gelu()
}
