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
//! Simple, and every byte passes through rank 0: it receives and sends n − 1 tensors while the others
//! handle one each, so its link is the bottleneck, and the time grows with the number of ranks.

use candle_core::Tensor;
use ops::sum;

use crate::communicator::{Communicator, Error};

/// The sum of all ranks' tensors, added in rank order on rank 0.
///
/// # Errors
///
/// As [`allreduce`](super::allreduce).
// ANCHOR: naive
pub fn naive(communicator: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let world_size = communicator.world_size();
    if world_size == 1 {
        return Ok(tensor.force_contiguous()?);
    }
    if communicator.rank() == 0 {
        let mut total = tensor.clone();
        for rank in 1..world_size {
            let received = communicator.borrow(rank, tensor.shape(), tensor.dtype())?;
            total = sum(&total, &received)?;
        }
        for rank in 1..world_size {
            communicator.lend(rank, &total)?;
        }
        communicator.reclaim()?;
        Ok(total)
    } else {
        communicator.lend(0, tensor)?;
        let total = communicator.borrow(0, tensor.shape(), tensor.dtype())?.owned()?;
        // Doesn't wait: rank 0 has read our tensor, or there would be no sum.
        communicator.reclaim()?;
        Ok(total)
    }
}
// ANCHOR_END: naive
