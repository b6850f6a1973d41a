//! A dense layer, Y = X·W + b with W `[in, out]`, on k ranks.
//!
//! | | a rank holds | it takes | it makes | sent forward | sent backward |
//! | --- | --- | --- | --- | --- | --- |
//! | by columns | W `[in, out/k]`, b `[out/k]` | X, all of it | its columns of Y | nothing | gradient of X, summed |
//! | by rows | W `[in/k, out]`, b `[out]` | its columns of X | a term of Y, summed | Y | nothing |
//!
//! What comes out of the first is what goes into the second: so a layer by columns and then one by rows need
//! one message forward, after the second, and one backward, before the first. What stands between them has to
//! work on each number for itself, as relu does; it would be wrong between the terms of a sum and the sum.
//!
//! These are Megatron-LM's `ColumnParallelLinear` and `RowParallelLinear`. (PyTorch and `candle_nn` store W
//! transposed, as `[out, in]`: there, a layer by columns holds rows of its matrix.)

use candle_core::{Result, Tensor};
use ops::{add_bias, add_bias_relu, linear, linear_relu};

use super::conjugate::{copy, reduce};
use super::group::Group;

// ANCHOR: linear
/// X·W + b by columns: `[B, in]`, `[in, out/k]`, `[out/k]` → `[B, out/k]`, this rank's columns.
///
/// # Errors
///
/// When the shapes do not fit; backward, when another rank stops or stalls.
pub fn linear_by_column(x: &Tensor, w: &Tensor, b: &Tensor, group: &Group) -> Result<Tensor> {
    linear(&copy(x, group)?, w, b)
}

/// [`linear_by_column`], then relu: of the columns that are here.
///
/// # Errors
///
/// Those of [`linear_by_column`].
pub fn linear_relu_by_column(x: &Tensor, w: &Tensor, b: &Tensor, group: &Group) -> Result<Tensor> {
    linear_relu(&copy(x, group)?, w, b)
}

/// X·W + b by rows: `[B, in/k]`, `[in/k, out]`, `[out]` → `[B, out]`, the same on every rank.
///
/// Every rank holds the whole bias and adds it once, after the sum. Were it added before, it would count k
/// times; were it added by one rank before, only that rank would find its gradient.
///
/// # Errors
///
/// When the shapes do not fit, or another rank stops or stalls.
pub fn linear_by_row(x: &Tensor, w: &Tensor, b: &Tensor, group: &Group) -> Result<Tensor> {
    add_bias(&sum_of_terms(x, w, group)?, b)
}

/// [`linear_by_row`], then relu, of the sum.
///
/// # Errors
///
/// Those of [`linear_by_row`].
pub fn linear_relu_by_row(x: &Tensor, w: &Tensor, b: &Tensor, group: &Group) -> Result<Tensor> {
    add_bias_relu(&sum_of_terms(x, w, group)?, b)
}

fn sum_of_terms(x: &Tensor, w: &Tensor, group: &Group) -> Result<Tensor> {
    let no_bias = Tensor::zeros(w.dim(1)?, w.dtype(), w.device())?;
    reduce(&linear(x, w, &no_bias)?, group)
}
// ANCHOR_END: linear
