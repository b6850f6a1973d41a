//! Reduce-scatter: every rank contributes a tensor, every rank gets one chunk of the sum.
//!
//! The ranks stand in a ring, and each only ever sends to the next. A chunk starts at the rank after
//! its owner and travels once around; every rank on the way adds its own numbers, and the owner is the
//! last to do so. Three ranks, the tensor of rank 0 in chunks a₀ a₁ a₂, of rank 1 b₀ b₁ b₂, of rank 2
//! c₀ c₁ c₂:
//!
//! ```text
//!          rank 0 has        rank 1 has        rank 2 has
//! step 1   a₁ + c₁           b₂ + a₂           c₀ + b₀
//!              ↑ c₁ from 2       ↑ a₂ from 0       ↑ b₀ from 1
//! step 2   a₀ + c₀ + b₀      b₁ + a₁ + c₁      c₂ + b₂ + a₂
//! ```
//!
//! After n − 1 steps rank r owns chunk r. In every step all n links carry one chunk, so no link is the
//! bottleneck: a rank sends (n − 1)/n of the tensor, however many ranks there are.

use candle_core::Tensor;

use super::{chunk_range, neighbours};
use crate::communicator::{Communicator, Error};

/// This rank's chunk of the sum: any shape → `[length of the chunk]`.
///
/// Rank r gets [`chunk_range`]`(elements, world_size, r)` of the flattened sum, in memory of its own.
/// Which rank adds when depends on the chunk and the world size alone.
///
/// # Errors
///
/// When the tensors differ in type or number of elements, or another rank stops or stalls.
pub fn reduce_scatter(communicator: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let chunk = scatter_lent(communicator, tensor)?;
    communicator.reclaim()?;
    Ok(chunk)
}

/// [`reduce_scatter`] of a tensor that stays as it is until the caller has reclaimed it.
pub(crate) fn scatter_lent(
    communicator: &impl Communicator,
    tensor: &Tensor,
) -> Result<Tensor, Error> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let flat = tensor.detach().flatten_all()?;
    if world_size == 1 {
        return Ok(flat.force_contiguous()?);
    }
    if let Some(engine) = communicator.collectives() {
        let own = chunk_range(flat.elem_count(), world_size, rank);
        return Ok(engine.sum(&flat)?.narrow(0, own.start, own.len())?.force_contiguous()?);
    }
    // ANCHOR: reduce_scatter
    let (next, previous) = neighbours(communicator);
    let chunk = |index: usize| {
        let range = chunk_range(flat.elem_count(), world_size, index % world_size);
        flat.narrow(0, range.start, range.len())
    };
    communicator.lend(next, &chunk(rank + world_size - 1)?)?;
    let mut step = 1;
    loop {
        let mine = chunk(rank + world_size - 1 - step)?;
        let received = communicator.borrow(previous, mine.shape(), mine.dtype())?;
        let sum = ops::sum(&mine, &received)?;
        drop(received);
        if step == world_size - 1 {
            return Ok(sum);
        }
        // A sum that nobody else has seen, and that this rank is done with.
        communicator.share(next, &sum)?;
        step += 1;
    }
    // ANCHOR_END: reduce_scatter
}
