// expect: law: a step sends one chunk, never the whole tensor, and chunks differ by at most one element

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

/// Passes whole tensors around the ring, and adds each that comes by.
pub fn ring(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let (next, previous) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    let mut sum = tensor.force_contiguous()?;
    let mut passing = sum.clone();
    for _ in 1..ranks {
        passing = if own % 2 == 0 {
            rank.send(next, &passing)?;
            rank.recv(previous, tensor.shape(), tensor.dtype())?
        } else {
            let arrived = rank.recv(previous, tensor.shape(), tensor.dtype())?;
            rank.send(next, &passing)?;
            arrived
        };
        sum = (sum + &passing)?;
    }
    Ok(sum)
}
