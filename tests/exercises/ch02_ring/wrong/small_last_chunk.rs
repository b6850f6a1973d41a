// expect: rank 0 sent a message of 4 bytes

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

/// Chunks of n / k elements, rounded up, and in the last what is left.
pub fn ring(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let flat = tensor.flatten_all()?.force_contiguous()?;
    let elements = flat.elem_count();
    let start = |chunk: usize| elements.min(chunk * elements.div_ceil(ranks));
    let mut chunks = (0..ranks)
        .map(|chunk| flat.narrow(0, start(chunk), start(chunk + 1) - start(chunk)))
        .collect::<candle_core::Result<Vec<_>>>()?;
    let before = |back: usize| (own + ranks - back) % ranks;
    for step in 1..ranks {
        let (out, into) = (before(step), before((step + 1) % ranks));
        let arrived = exchange(rank, &chunks[out], &chunks[into])?;
        chunks[into] = (&chunks[into] + arrived)?;
    }
    for step in 0..ranks - 1 {
        let (out, into) = (before(step), before(step + 1));
        chunks[into] = exchange(rank, &chunks[out], &chunks[into])?;
    }
    Ok(Tensor::cat(&chunks, 0)?.reshape(tensor.shape())?)
}

fn exchange(rank: &impl Communicator, out: &Tensor, expected: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let (next, previous) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    if own % 2 == 0 {
        rank.send(next, out)?;
        rank.recv(previous, expected.shape(), expected.dtype())
    } else {
        let arrived = rank.recv(previous, expected.shape(), expected.dtype())?;
        rank.send(next, out)?;
        Ok(arrived)
    }
}
