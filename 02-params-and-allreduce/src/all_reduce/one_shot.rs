//! Everyone gets all tensors, and everyone adds all of them up.
//!
//! Three ranks, one number each:
//!
//! ```text
//!            rank 0       rank 1       rank 2
//! before     1            2            4
//! exchange   1 2 4        1 2 4        1 2 4
//! add        7            7            7
//! ```
//!
//! One round, where the others wait for messages that depend on each other: on a few ranks nothing is quicker
//! for a small tensor. On many a tree is, as a rank takes its n − 1 messages one after the other.
//! The price is that every rank sends n − 1 tensors and makes the whole sum, which grows with n. Where
//! ranks read each other's memory, two of them pay little for it: in the ring each adds one half and
//! copies the other, and to add a half takes hardly longer than to copy it. GPUs that reach into each
//! other's memory sum small tensors in this way, and the name comes from there.

use candle_core::Tensor;
use ops::sum;

use crate::communicator::{Communicator, Error, Received};

/// The sum of all ranks' tensors, added in rank order on every rank.
///
/// # Errors
///
/// As [`allreduce`](super::allreduce).
pub fn one_shot(communicator: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    if world_size == 1 {
        return Ok(tensor.force_contiguous()?);
    }
    let mine = tensor.contiguous()?;
    for distance in 1..world_size {
        communicator.lend((rank + distance) % world_size, &mine)?;
    }
    let tensor_of = |other: usize| match other == rank {
        true => Ok(Received::shared(mine.clone())),
        false => communicator.borrow(other, mine.shape(), mine.dtype()),
    };
    let mut total = sum(&*tensor_of(0)?, &*tensor_of(1)?)?;
    for other in 2..world_size {
        total = sum(&total, &*tensor_of(other)?)?;
    }
    communicator.reclaim()?;
    Ok(total)
}
