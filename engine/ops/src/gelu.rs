//! GELU: x times the probability that a normal number is below x.

use candle_core::{Result, Tensor};

/// `x · Φ(x)`, exactly, of any shape: PyTorch's `gelu`.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    // candle's `gelu_erf` rounds 1 / √2π in its gradient to seven digits.
    (x * ((x * std::f64::consts::FRAC_1_SQRT_2)?.erf()? + 1.0)?)? * 0.5
}

/// GELU by its approximation with a hyperbolic tangent, of any shape: PyTorch's `gelu(approximate="tanh")`.
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    // candle's `gelu` rounds √(2 / π) in its gradient to seven digits.
    let cubic = (x + (x.sqr()? * x)?.affine(0.044715, 0.0)?)?;
    let slope = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    (x * ((cubic * slope)?.tanh()? + 1.0)?)? * 0.5
}
