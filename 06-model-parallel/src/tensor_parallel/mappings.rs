//! The mappings between one activation on all ranks and a part of the activation on each rank, and the layers that they make.
//! The backward pass of a mapping is the forward pass of another.
//!
//! | | forward | backward | in Megatron-LM |
//! | --- | --- | --- | --- |
//! | [`copy`] | identity | all-reduce | f, `copy_to_tensor_model_parallel_region` |
//! | [`reduce`] | all-reduce | identity | g, `reduce_from_tensor_model_parallel_region` |
//! | [`gather`] | all-gather | this rank's part | `gather_from_tensor_model_parallel_region` |
//!
//! All ranks of the group call these functions together, in the same order. A group of one rank sends nothing.

use std::sync::Arc;

use candle_core::{Error, Result, Tensor};
use ops::add_reduced;
use ops::backward::record_copy;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;

use super::sharding::{join, part};

// ANCHOR: mappings
/// f: returns `x`, of any shape, as the input of every rank's part of a layer. Backward, sums the gradients of all ranks.
///
/// Sends nothing backward if `x` needs no gradient, as images do not. Backward, fails when another rank stops or stalls.
pub fn copy(x: &Tensor, group: &SharedCommunicator) -> Result<Tensor> {
    if group.world_size() == 1 || !x.track_op() {
        return Ok(x.clone());
    }
    let group = Arc::clone(group);
    record_copy("copy to all ranks", x, [x], move |_, dy| Ok([Some(sum(dy, &group)?)]))
}

/// g: sums the tensors of all ranks, of any shape. Backward, returns the gradient as it is. Fails when another rank stops or
/// stalls.
pub fn reduce(x: &Tensor, group: &SharedCommunicator) -> Result<Tensor> {
    if group.world_size() == 1 {
        return Ok(x.clone());
    }
    record_copy("reduce from all ranks", &sum(x, group)?, [x], |_, dy| Ok([Some(dy.clone())]))
}

/// Joins all ranks' parts along an axis: `[…, n / k, …]` → `[…, n, …]`. Backward, returns this rank's part of the gradient,
/// which is the same on all ranks. Fails with the errors of [`join`].
pub fn gather(x: &Tensor, axis: usize, n: usize, group: &SharedCommunicator) -> Result<Tensor> {
    if group.world_size() == 1 {
        return Ok(x.clone());
    }
    let (whole, group) = (join(x, axis, n, group)?, Arc::clone(group));
    record_copy("gather from all ranks", &whole, [x], move |_, dy| {
        Ok([Some(part(dy, axis, &group)?)])
    })
}

/// The sum of all ranks' tensors, with the same bits on every rank. A ring saves nothing between two ranks.
fn sum(x: &Tensor, group: &SharedCommunicator) -> Result<Tensor> {
    if group.world_size() == 1 {
        return Ok(x.clone());
    }
    let algorithm = if group.world_size() > 2 { Algorithm::Ring } else { Algorithm::OneShot };
    group.all_reduce(x, algorithm).map_err(Error::wrap)
}
// ANCHOR_END: mappings

// ANCHOR: combinators
/// A layer by columns: `part` computes this rank's outputs from all inputs.
///
/// Fails with the errors of `part`. Backward, fails when another rank stops or stalls.
pub fn by_column(
    x: &Tensor,
    group: &SharedCommunicator,
    part: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    part(&copy(x, group)?)
}

/// A layer by rows: `term` computes a term of all outputs from this rank's inputs. g adds up the terms of all ranks, and then
/// adds `bias`, whose axes are the last axes of the outputs. The result is the same on every rank.
///
/// Every rank holds the whole bias and adds it once, after the sum. Before the sum, k ranks would add the bias k times.
/// If one rank alone added the bias before the sum, only this rank would have its gradient. The graph keeps the term and the
/// result, and not the sum without the bias. Fails with the errors of `term`, or when another rank stops or stalls.
pub fn by_row(
    x: &Tensor,
    group: &SharedCommunicator,
    term: impl FnOnce(&Tensor) -> Result<Tensor>,
    bias: &Tensor,
) -> Result<Tensor> {
    let term = term(x)?;
    add_reduced(&term, &sum(&term, group)?, bias)
}
// ANCHOR_END: combinators
