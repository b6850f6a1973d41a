// expect: law: with fewer elements than ranks some chunks are empty

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

/// `Tensor::chunk` makes no empty chunks. And every rank sends first.
pub fn ring(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let mut chunks = tensor.flatten_all()?.force_contiguous()?.chunk(ranks, 0)?;
    let (next, previous) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    let before = |back: usize| (own + ranks - back) % ranks;
    for step in 1..ranks {
        let into = before((step + 1) % ranks);
        rank.send(next, &chunks[before(step)])?;
        let arrived = rank.recv(previous, chunks[into].shape(), chunks[into].dtype())?;
        chunks[into] = (&chunks[into] + arrived)?;
    }
    for step in 0..ranks - 1 {
        let into = before(step + 1);
        rank.send(next, &chunks[before(step)])?;
        chunks[into] = rank.recv(previous, chunks[into].shape(), chunks[into].dtype())?;
    }
    Ok(Tensor::cat(&chunks, 0)?.reshape(tensor.shape())?)
}
