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
//! The steps themselves are drawn in [`reduce_scatter`](crate::collective::reduce_scatter()) and
//! [`all_gather`](crate::collective::all_gather()). Each half moves (n − 1)/n of the tensor, so a rank
//! sends 2(n − 1)/n of it: less than two tensors' worth, however many ranks there are, and no algorithm
//! that adds in the ranks can send less. The price is 2(n − 1) steps that wait for each other, which is
//! what a small tensor on many ranks feels.

use candle_core::Tensor;

use crate::collective::all_gather::gather_shared;
use crate::collective::reduce_scatter::scatter_lent;
use crate::communicator::{Communicator, Error};

/// The sum of all ranks' tensors; each chunk is added in the order of the ring.
///
/// # Errors
///
/// As [`allreduce`](super::allreduce).
pub fn ring(communicator: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let chunk = scatter_lent(communicator, tensor)?;
    let sum = gather_shared(communicator, chunk, tensor.elem_count())?;
    // At once: what this rank lent is part of a sum that has come round to it.
    communicator.reclaim()?;
    Ok(sum.reshape(tensor.shape())?)
}
