//! Tensor parallelism: every rank holds a part of every layer.
//!
//! All ranks of a group get the same batch. A rank computes some of a layer's outputs, or a term of all of them. Two dense
//! layers on two ranks, with one all-reduce forward and one backward:
//!
//! ```text
//!              rank 0                                 rank 1
//! forward      X                                      X              the same on both
//!              X·A₀ + a₀ → relu                       X·A₁ + a₁ → relu      A cut by columns
//!              H₀·B₀                                  H₁·B₁                 B cut by rows
//!              └──────────── all-reduce ────────────────┘            g
//!              H₀·B₀ + H₁·B₁ + b                      the same
//!
//! backward     G                                      G              the same on both
//!              G·B₀ᵀ → relu' → ·A₀ᵀ                   G·B₁ᵀ → relu' → ·A₁ᵀ
//!              └──────────── all-reduce ────────────────┘            f
//!              dX                                     the same
//! ```
//!
//! The group is a communicator, such as a row of the [mesh](crate::mesh).
//! [`Layers::build_part`](crate::layers::Layers::build_part) builds a rank's part of a network. The ranks of a group never
//! send gradients of weights.
//!
//! A mapping makes one activation on all ranks from a part of the activation on each rank, or the reverse. Its backward pass
//! is the forward pass of another mapping.
//!
//! | | forward | backward | in Megatron-LM |
//! | --- | --- | --- | --- |
//! | [`copy`] | identity | all-reduce | f, `copy_to_tensor_model_parallel_region` |
//! | [`reduce`] | all-reduce | identity | g, `reduce_from_tensor_model_parallel_region` |
//! | [`gather`] | all-gather | this rank's part | `gather_from_tensor_model_parallel_region` |
//!
//! All ranks of the group call these functions together, in the same order. A group of one rank sends nothing.

use std::sync::Arc;

use candle_core::{Error, Result, Tensor, bail};
use harness::report::trace::COMMUNICATION;
use ops::backward::record_copy;
use ops::{add_reduced, size_in_bytes};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;
use split_batch::shard_range;
use tracing::info_span;

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

// ANCHOR: sharding
/// This rank's part of a whole tensor, a view of the tensor: a run of the features along one axis, in rank order.
///
/// ```text
/// columns: axis 1            rows: axis 0
///
///  rank 0  rank 1             ┌─────────┐
/// ┌───────┬─────┐             │         │ rank 0
/// │ 0 1 2 │ 3 4 │             │         │
/// │       │     │             ├─────────┤
/// └───────┴─────┘             │         │ rank 1
///                             └─────────┘
/// ```
///
/// The runs are those of [`shard_range`]: their lengths differ by at most one, and the first runs are the longer. Fails when
/// there is no such axis.
pub fn part(whole: &Tensor, axis: usize, group: &SharedCommunicator) -> Result<Tensor> {
    let mine = shard_range(whole.dim(axis)?, group.world_size(), group.rank());
    whole.narrow(axis, mine.start, mine.len())
}

/// Joins all ranks' parts of a tensor with `n` features along the axis, with the same bits on every rank; a constant, without a
/// gradient.
///
/// The pieces of an all-gather have one size. So a rank adds zeros to a narrow part, as PyTorch's `DTensor` does. Fails when
/// the part has another length, or another rank stops or stalls.
pub fn join(part: &Tensor, axis: usize, n: usize, group: &SharedCommunicator) -> Result<Tensor> {
    let (ranks, rank) = (group.world_size(), group.rank());
    let length = |rank| shard_range(n, ranks, rank).len();
    if part.dim(axis)? != length(rank) {
        let (length, found) = (length(rank), part.dims());
        bail!(
            "rank {rank} of {ranks} has {length} of {n} features along axis {axis}, not {found:?}"
        );
    }
    let part = part.detach().pad_with_zeros(axis, 0, length(0) - length(rank))?;
    let (piece, shape, bytes) = (part.elem_count(), part.dims(), size_in_bytes(&part));
    let span = info_span!(target: COMMUNICATION, "all-gather", bytes, ?shape);
    let pieces = span.in_scope(|| group.all_gather(&part.flatten_all()?, piece * ranks));
    let pieces = pieces.map_err(Error::wrap)?;
    let part_of = |rank| {
        let padded = pieces.narrow(0, rank * piece, piece)?.reshape(part.shape())?;
        padded.narrow(axis, 0, length(rank))
    };
    Tensor::cat(&(0..ranks).map(part_of).collect::<Result<Vec<_>>>()?, axis)
}
// ANCHOR_END: sharding
