//! A dense layer, Y = X·W + b with W `[in, out]`, on k ranks.
//!
//! | | a rank holds | input | result | sent forward | sent backward |
//! | --- | --- | --- | --- | --- | --- |
//! | by columns | W `[in, out/k]`, b `[out/k]` | all of X | its columns of Y | nothing | gradient of X, summed |
//! | by rows | W `[in/k, out]`, b `[out]` | its columns of X | a term of Y, summed | Y | nothing |
//!
//! On one rank both layers are the layer of one device, with the same bits. These are Megatron-LM's
//! `ColumnParallelLinear` and `RowParallelLinear`. PyTorch stores W transposed.

use candle_core::{Result, Tensor};
use ops::{add_bias, add_bias_relu, linear, linear_relu};

use super::group::Group;
use super::mappings::{copy, reduce};

// ANCHOR: linear
/// X·W + b by columns: `[B, in]`, `[in, out/k]`, `[out/k]` → `[B, out/k]`, this rank's columns. Fails when the shapes
/// do not fit; backward, fails when another rank stops or stalls.
pub fn linear_by_column(x: &Tensor, w: &Tensor, b: &Tensor, group: &Group) -> Result<Tensor> {
    linear(&copy(x, group)?, w, b)
}

/// [`linear_by_column`], then relu of this rank's columns. Fails with the errors of [`linear_by_column`].
pub fn linear_relu_by_column(x: &Tensor, w: &Tensor, b: &Tensor, group: &Group) -> Result<Tensor> {
    linear_relu(&copy(x, group)?, w, b)
}

/// X·W + b by rows: `[B, in/k]`, `[in/k, out]`, `[out]` → `[B, out]`, the same on every rank.
///
/// Every rank holds the whole bias and adds it once, after the sum. Before the sum, k ranks would add the bias k times.
/// If one rank alone added the bias before the sum, only this rank would have its gradient. Fails when the shapes do
/// not fit, or another rank stops or stalls.
pub fn linear_by_row(x: &Tensor, w: &Tensor, b: &Tensor, group: &Group) -> Result<Tensor> {
    match group.ranks() {
        1 => linear(x, w, b),
        _ => add_bias(&sum_of_terms(x, w, group)?, b),
    }
}

/// [`linear_by_row`], then relu of the sum. Fails with the errors of [`linear_by_row`].
pub fn linear_relu_by_row(x: &Tensor, w: &Tensor, b: &Tensor, group: &Group) -> Result<Tensor> {
    match group.ranks() {
        1 => linear_relu(x, w, b),
        _ => add_bias_relu(&sum_of_terms(x, w, group)?, b),
    }
}

fn sum_of_terms(x: &Tensor, w: &Tensor, group: &Group) -> Result<Tensor> {
    let no_bias = Tensor::zeros(w.dim(1)?, w.dtype(), w.device())?;
    reduce(&linear(x, w, &no_bias)?, group)
}
// ANCHOR_END: linear
