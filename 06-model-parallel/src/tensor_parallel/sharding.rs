//! The part of a tensor that a rank holds: a run of the features along one axis, in rank order.
//!
//! ```text
//! columns: axis 1            rows: axis 0
//!
//!  rank 0  rank 1             ┌─────────┐
//! ┌───────┬─────┐             │         │ rank 0
//! │ 0 1 2 │ 3 4 │             │         │
//! │       │     │             ├─────────┤
//! └───────┴─────┘             │         │ rank 1
//!                             └─────────┘
//! ```
//!
//! The runs are those of [`shard_range`]: their lengths differ by at most one, and the first runs are the longer.

use candle_core::{Error, Result, Tensor, bail};
use harness::report::trace::COMMUNICATION;
use ops::size_in_bytes;
use params_and_allreduce::communicator::SharedCommunicator;
use split_batch::shard_range;
use tracing::info_span;

// ANCHOR: sharding
/// This rank's part of a whole tensor, a view of the tensor. Fails when there is no such axis.
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
