//! All-gather: every rank has one chunk, every rank gets all of them.
//!
//! In the ring again: a rank passes on what it received in the step before. Three ranks:
//!
//! ```text
//!          rank 0       rank 1       rank 2
//! before   s₀ ·  ·      ·  s₁ ·      ·  ·  s₂
//! step 1   s₀ ·  s₂     s₀ s₁ ·      ·  s₁ s₂
//! step 2   s₀ s₁ s₂     s₀ s₁ s₂     s₀ s₁ s₂
//! ```
//!
//! As in the reduce-scatter, a rank sends (n − 1)/n of the whole.

use candle_core::Tensor;

use super::{chunk_range, neighbours};
use crate::communicator::{Communicator, Error};

/// All ranks' chunks, in rank order: `[length of the chunk]` → `[len]`.
///
/// Rank r brings [`chunk_range`]`(len, world_size, r)`. Every rank gets the same bits, in memory of its
/// own.
///
/// # Errors
///
/// When a chunk has another length or type than that, or another rank stops or stalls.
pub fn all_gather(
    communicator: &impl Communicator,
    chunk: &Tensor,
    len: usize,
) -> Result<Tensor, Error> {
    // The copy may be passed from rank to rank without being copied again.
    let chunks = gather_shared(communicator, chunk.detach().force_contiguous()?, len)?;
    // Joined into memory of this rank's own: the chunks may be shared with all others.
    Ok(Tensor::cat(&chunks, 0)?)
}

/// All ranks' chunks, in rank order, when nobody will write to this rank's any more. Nor may anybody
/// write to those that come back: others may hold them too.
pub(crate) fn gather_shared(
    communicator: &impl Communicator,
    chunk: Tensor,
    len: usize,
) -> Result<Vec<Tensor>, Error> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let length = |index: usize| chunk_range(len, world_size, index).len();
    if chunk.dims() != [length(rank)] {
        let message = format!(
            "rank {rank} of {world_size} gathers {len} elements: it brings {:?}, not [{}]",
            chunk.dims(),
            length(rank)
        );
        return Err(Error::Other(message));
    }
    let dtype = chunk.dtype();
    if let Some(engine) = communicator.collectives() {
        let of = |owner: usize| match owner == rank {
            true => engine.broadcast(&chunk, owner),
            false => engine
                .broadcast(&Tensor::zeros(length(owner), dtype, communicator.device())?, owner),
        };
        return (0..world_size).map(of).collect();
    }
    // ANCHOR: all_gather
    let (next, previous) = neighbours(communicator);
    let mut chunks = vec![chunk; world_size];
    for step in 0..world_size - 1 {
        let passed_on = (rank + world_size - step) % world_size;
        let arriving = (rank + world_size - step - 1) % world_size;
        communicator.share(next, &chunks[passed_on])?;
        chunks[arriving] = communicator.recv(previous, &length(arriving).into(), dtype)?;
    }
    // ANCHOR_END: all_gather
    Ok(chunks)
}
