//! Reduce-scatter, then all-gather, around a ring.
//!
//! Three ranks, three numbers each; a chunk is one number:
//!
//! ```text
//!                  rank 0       rank 1       rank 2
//! before           1  2  3      10 20 30     100 200 300
//! reduce-scatter   111  ·  ·     ·  222  ·     ·  ·  333     (2 steps)
//! all-gather       111 222 333  111 222 333  111 222 333    (2 steps)
//! ```
//!
//! Each half moves (n − 1)/n of the tensor, so a rank sends 2(n − 1)/n of it: less than two tensors, on any number of
//! ranks. No algorithm that adds in the ranks can send less. The price is 2(n − 1) steps, each of which waits for the step
//! before. A small tensor on many ranks feels this.

// ANCHOR: ring
use candle_core::Tensor;

use super::Sum;
use crate::communicator::collectives::{add_around_the_ring, pass_around_the_ring};
use crate::communicator::{Communicator, Error};

/// Adds up all tensors, each chunk in the order of the ring. Fails as [`Communicator::all_reduce`]
/// does.
pub fn ring(rank: &(impl Communicator + ?Sized), tensor: &Tensor) -> Result<Sum, Error> {
    let flat = tensor.flatten_all()?;
    let chunk = add_around_the_ring(rank, &flat)?;
    // The chunk that this rank sent first comes back as part of the sum, so the next rank has read it.
    Ok(Sum::Shared(pass_around_the_ring(rank, chunk, flat.elem_count())?))
}
// ANCHOR_END: ring
