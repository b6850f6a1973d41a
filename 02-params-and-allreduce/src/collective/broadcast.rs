//! Broadcast: every rank gets the root's tensor.
//!
//! Along a binomial tree: in each round every rank that has the tensor sends it to one that has not, so
//! the number of ranks that have it doubles. Seven ranks, root 0:
//!
//! ```text
//! round 1   0 → 4
//! round 2   0 → 2   4 → 6
//! round 3   0 → 1   2 → 3   4 → 5
//! ```
//!
//! With another root the ranks are renumbered so that the root is 0. In one process nothing is copied on
//! the way: what a rank has borrowed it lends on, and all copies are made at the same time, straight from
//! the root's memory.

use candle_core::Tensor;

use crate::communicator::{Communicator, Error};

/// The root's tensor, on every rank.
///
/// Every rank brings a tensor of the same shape and type; only the root's values count. On the root
/// the result is the tensor that went in (a copy, if an engine makes it); elsewhere it has memory of its own.
///
/// # Errors
///
/// When there is no rank `root`, when the tensors differ in shape or type, or another rank stops or
/// stalls.
pub fn broadcast(
    communicator: &impl Communicator,
    tensor: &Tensor,
    root: usize,
) -> Result<Tensor, Error> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    if root >= world_size {
        return Err(Error::NoSuchRank { rank, other: root, world_size });
    }
    if let Some(engine) = communicator.collectives() {
        return engine.broadcast(&tensor.detach(), root);
    }
    // Counted from the root; `number` finds the rank behind such a place.
    let place = (rank + world_size - root) % world_size;
    let number = |place: usize| (place + root) % world_size;
    let mut distance = world_size.next_power_of_two();
    let tensor = tensor.detach();
    let mut borrowed = None;
    while distance > 1 {
        distance /= 2;
        if place % (2 * distance) == distance {
            let parent = number(place - distance);
            borrowed = Some(communicator.borrow(parent, tensor.shape(), tensor.dtype())?);
        } else if place.is_multiple_of(2 * distance) && place + distance < world_size {
            communicator.lend(number(place + distance), borrowed.as_deref().unwrap_or(&tensor))?;
        }
    }
    let mine = match &borrowed {
        Some(borrowed) => borrowed.owned()?,
        None => tensor,
    };
    // What this rank has lent on is not its own: it goes back when those who got it here are done.
    communicator.reclaim()?;
    drop(borrowed);
    Ok(mine)
}
