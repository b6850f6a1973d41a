//! Every rank gets all tensors, and every rank adds all of them up.
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
//! No message depends on another, so for a small tensor on a few ranks nothing is faster. The price: every rank sends n − 1
//! tensors and computes the whole sum.

// ANCHOR: one_shot
use candle_core::Tensor;

use crate::communicator::collectives::{send_input, wait_until_read};
use crate::communicator::{Communicator, Error};

/// Adds up all tensors on every rank, in rank order. Fails as [`Communicator::all_reduce`] does.
pub fn one_shot(comm: &(impl Communicator + ?Sized), tensor: &Tensor) -> Result<Tensor, Error> {
    let (me, world_size) = (comm.rank(), comm.world_size());
    let others = || (1..world_size).map(|distance| (me + distance) % world_size);
    let mine = tensor.contiguous()?;
    others().try_for_each(|other| send_input(comm, other, &mine))?;
    let tensor_of = |other: usize| {
        if other == me { Ok(mine.clone()) } else { comm.recv(other, mine.shape(), mine.dtype()) }
    };
    let mut total = ops::sum(&tensor_of(0)?, &tensor_of(1)?)?;
    for other in 2..world_size {
        total = ops::sum(&total, &tensor_of(other)?)?;
    }
    wait_until_read(comm, &mine, others(), others())?;
    Ok(total)
}
// ANCHOR_END: one_shot
