//! The ranks of a host add up among themselves. Then each rank adds up its chunk with the ranks that have the same chunk on
//! other hosts.

use candle_core::Tensor;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error, Group, SharedCommunicator};

pub fn hierarchical(
    comm: &SharedCommunicator,
    ranks_per_host: usize,
    tensor: &Tensor,
) -> Result<Tensor, Error> {
    let (host, place) = (comm.rank() / ranks_per_host, comm.rank() % ranks_per_host);
    let first = host * ranks_per_host;
    let inside = Group::new(comm.clone(), (first..first + ranks_per_host).collect())?;
    let hosts = comm.world_size() / ranks_per_host;
    let same_place = (0..hosts).map(|host| host * ranks_per_host + place).collect();
    let between = Group::new(comm.clone(), same_place)?;
    let chunk = inside.reduce_scatter(tensor)?;
    let chunk = between.all_reduce(&chunk, Algorithm::Ring)?;
    Ok(inside.all_gather(&chunk, tensor.elem_count())?.reshape(tensor.shape())?)
}

exercises::check!(ch02_hierarchical, hierarchical, run);
