//! The dense layer.

use candle_core::{Result, Tensor};

/// x · w + b: `[B, in]`, `[in, out]`, `[out]` → `[B, out]`.
///
/// Plain candle: its matrix product and the product's gradients are right and fast.
///
/// # Errors
///
/// When the shapes do not fit.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    x.matmul(weight)?.broadcast_add(bias)
}
