//! Add up along a binomial tree, then broadcast down the same tree.
//!
//! In each round half of the ranks that are still in it send their partial sum to a neighbour and are
//! done. Six ranks, one number each:
//!
//! ```text
//!              rank 0   rank 1   rank 2   rank 3   rank 4   rank 5
//! before       1        2        4        8        16       32
//! distance 1   3 ← 2    ·        12 ← 8   ·        48 ← 32  ·
//! distance 2   15 ← 12  ·        ·        ·        48       ·
//! distance 4   63 ← 48  ·        ·        ·        ·        ·
//! broadcast    63 → 4, then 0 → 2, then 0 → 1, 2 → 3, 4 → 5
//! ```
//!
//! 2⌈log₂ n⌉ rounds where the ring needs 2(n − 1), so it is quick for small tensors on many ranks. But
//! every message is a whole tensor, and rank 0 sends ⌈log₂ n⌉ of them.

use candle_core::Tensor;
use ops::sum;

use crate::collective::broadcast;
use crate::communicator::{Communicator, Error};

/// The sum of all ranks' tensors, added in the order of the tree.
///
/// # Errors
///
/// As [`allreduce`](super::allreduce).
pub fn tree(communicator: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    if communicator.world_size() == 1 {
        return Ok(tensor.force_contiguous()?);
    }
    broadcast(communicator, &reduce(communicator, tensor)?, 0)
}

/// The sum on rank 0; elsewhere what this rank passed on. The broadcast waits until that is read.
// ANCHOR: reduce
fn reduce(communicator: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let mut total = tensor.clone();
    let mut distance = 1;
    while distance < world_size {
        if rank % (2 * distance) == distance {
            communicator.lend(rank - distance, &total)?;
            break;
        }
        if rank + distance < world_size {
            let received = communicator.borrow(rank + distance, total.shape(), total.dtype())?;
            total = sum(&total, &received)?;
        }
        distance *= 2;
    }
    Ok(total)
}
// ANCHOR_END: reduce
