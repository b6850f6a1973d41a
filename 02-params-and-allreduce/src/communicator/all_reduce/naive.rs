//! Gather to the first rank, add, broadcast back.
//!
//! Three ranks, one number each:
//!
//! ```text
//!            rank 0      rank 1   rank 2
//! before     1           2        4
//! gather     1 ← 2       ·        ·
//!            3 ← 4       ·        ·
//! broadcast  7 →         7        7
//! ```
//!
//! The algorithm is simple, and every byte passes through rank 0. Rank 0 receives and sends n − 1 tensors, and every other
//! rank handles one. So the link of rank 0 limits the speed, and the time grows with the number of ranks.

// ANCHOR: naive
use candle_core::Tensor;

use crate::communicator::{Communicator, Error};

/// Adds up all tensors on rank 0, in rank order, and sends the sum to all ranks. Fails as
/// [`Communicator::all_reduce`] does.
pub fn naive(comm: &(impl Communicator + ?Sized), tensor: &Tensor) -> Result<Tensor, Error> {
    if comm.rank() > 0 {
        comm.send(0, tensor)?;
        return comm.recv(0, tensor.shape(), tensor.dtype());
    }
    let mut total = tensor.clone();
    for other in 1..comm.world_size() {
        total = ops::sum(&total, &comm.recv(other, tensor.shape(), tensor.dtype())?)?;
    }
    for other in 1..comm.world_size() {
        comm.send_shared(other, &total)?;
    }
    Ok(total)
}
// ANCHOR_END: naive
