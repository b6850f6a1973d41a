//! Softmax over the last axis.

use candle_core::{D, Result, Tensor};

/// `exp(x) / Σ exp(x)` over the last axis, of any shape.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let powers = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?.exp()?;
    powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)
}
