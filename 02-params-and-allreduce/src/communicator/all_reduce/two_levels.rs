//! All-reduce in two levels: inside each host, then between hosts, then inside each host again.
//!
//! ```text
//!                  host 0                host 1
//! before           1    2     10   20    100  200   1000 2000
//! reduce-scatter   11   ·     ·    22    1100 ·     ·    2200     (inside each host)
//! all-reduce       1111 ·     ·    2222  1111 ·     ·    2222     (rank 0 with 2, rank 1 with 3)
//! all-gather       1111 2222  1111 2222  1111 2222  1111 2222     (inside each host)
//! ```
//!
//! With a ring between h hosts, each host sends 2(h − 1)/h of the tensor to other hosts, whatever its number of ranks.

// ANCHOR: two_levels
use candle_core::Tensor;

use crate::communicator::all_reduce::Algorithm;
use crate::communicator::{Communicator as _, Error, Group, SharedCommunicator};

/// Adds up all tensors where each host has `ranks_per_host` ranks with consecutive numbers. The `algorithm` adds up between
/// hosts. Every rank gets the same bits. Fails as [`Communicator::all_reduce`](crate::communicator::Communicator::all_reduce)
/// does, and when the hosts would have different numbers of ranks.
pub fn two_levels(
    comm: &SharedCommunicator,
    ranks_per_host: usize,
    tensor: &Tensor,
    algorithm: Algorithm,
) -> Result<Tensor, Error> {
    let (me, world_size) = (comm.rank(), comm.world_size());
    if ranks_per_host == 0 || !world_size.is_multiple_of(ranks_per_host) {
        let text = format!("{world_size} ranks cannot form hosts of {ranks_per_host} ranks each");
        return Err(Error::Other(text));
    }
    let place = me % ranks_per_host;
    let host = Group::new(comm.clone(), (me - place..me - place + ranks_per_host).collect())?;
    let peers = Group::new(comm.clone(), (place..world_size).step_by(ranks_per_host).collect())?;
    let chunk = host.reduce_scatter(tensor)?;
    let sum = peers.all_reduce(&chunk, algorithm)?;
    Ok(host.all_gather(&sum, tensor.elem_count())?.reshape(tensor.shape())?)
}
// ANCHOR_END: two_levels
