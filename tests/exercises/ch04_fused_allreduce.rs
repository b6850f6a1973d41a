//! Chapter 4, `book/src/ch04-data-parallel.md`: all gradients in one all-reduce.
//!
//! Check your answer: `cargo course check ch04_fused_allreduce`

use candle_core::Tensor;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// The sum over all ranks of each tensor of a list, by *one* call of `allreduce`.
///
/// All ranks call this together, each with its own gradients: on every rank the same number of tensors, with
/// the same shapes in the same order, all of one element type. The result has the same type, shapes and
/// order. For two tensors `[2, 3]` and `[3]`:
///
/// ```text
/// [2, 3]  →  ┌─────────────┬───────┐               ┌─────────────┬───────┐  →  [2, 3]
/// [3]     →  │ 0 1 2 3 4 5 │ 6 7 8 │ ─ allreduce ─ │ 0 1 2 3 4 5 │ 6 7 8 │  →  [3]
///            └─────────────┴───────┘               └─────────────┴───────┘
/// ```
///
/// `algorithm` is the algorithm of that call, such as one-shot or ring. The ranks send as many bytes as in one `allreduce` of a
/// tensor of all these elements, in their type.
///
/// A tensor may be a scalar (shape `[]`), have no elements (`[0, 4]`), or be a transposed view. If there are no tensors, the
/// ranks send nothing, and the result is empty.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn allreduce_fused(
    rank: &impl Communicator,
    tensors: &[Tensor],
    algorithm: Algorithm,
) -> Result<Vec<Tensor>, Error> {
    // TODO: make one row of all tensors, sum it over the ranks, cut it up again.
    todo!("one all-reduce for all tensors")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch04_fused_allreduce, allreduce_fused, run);
