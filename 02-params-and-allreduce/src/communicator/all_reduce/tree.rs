//! Add up along a binomial tree, then broadcast down the same tree.
//!
//! In each round, half of the ranks that are still in it send their partial sum to a neighbour and are done. Six ranks,
//! one number each:
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
//! The tree has 2⌈log₂ n⌉ rounds, and the ring has 2(n − 1). So the tree is fast for small tensors on many ranks. But every
//! message is a whole tensor, and rank 0 sends ⌈log₂ n⌉ of them.

// ANCHOR: tree
use candle_core::Tensor;

use crate::communicator::collectives::broadcast_shared;
use crate::communicator::{Communicator, Error};

/// Adds up all tensors in the order of the tree. Fails as [`Communicator::all_reduce`] does.
pub fn tree(comm: &(impl Communicator + ?Sized), tensor: &Tensor) -> Result<Tensor, Error> {
    let (me, world_size) = (comm.rank(), comm.world_size());
    let mut total = tensor.clone();
    let mut distance = 1;
    while distance < world_size {
        if me % (2 * distance) == distance {
            comm.send(me - distance, &total)?;
            break;
        }
        if me + distance < world_size {
            let received = comm.recv(me + distance, total.shape(), total.dtype())?;
            total = ops::sum(&total, &received)?;
        }
        distance *= 2;
    }
    // Rank 0 has the sum. The partial sums of all other ranks are no longer needed.
    broadcast_shared(comm, &total, 0)
}
// ANCHOR_END: tree
