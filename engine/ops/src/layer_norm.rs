//! Layer norm: each row to mean 0 and variance 1, then a scale and a shift for each feature.

use candle_core::{D, Result, Tensor};

/// Normalises the last axis: `[…, features]` with a weight and a bias `[features]` → `[…, features]`.
///
/// `(x − mean) / √(variance + epsilon) · weight + bias`, with the biased variance, as PyTorch's `layer_norm`.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    let normalised = centred.broadcast_div(&(variance + epsilon)?.sqrt()?)?;
    normalised.broadcast_mul(weight)?.broadcast_add(bias)
}
