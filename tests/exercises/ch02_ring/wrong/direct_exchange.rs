// expect: rank 0 sent something to ranks 1 2

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

/// Every rank sends each other one its chunk, adds up its own, and sends the sum to each: no ring.
pub fn ring(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let flat = tensor.flatten_all()?.force_contiguous()?;
    let elements = flat.elem_count();
    let start = |chunk: usize| elements * chunk / ranks;
    let mut chunks = (0..ranks)
        .map(|chunk| flat.narrow(0, start(chunk), start(chunk + 1) - start(chunk)))
        .collect::<candle_core::Result<Vec<_>>>()?;
    let partners = |step: usize| ((own + step) % ranks, (own + ranks - step) % ranks);
    for step in 1..ranks {
        let (to, from) = partners(step);
        let arrived = exchange(rank, [to, from], &chunks[to], &chunks[own])?;
        chunks[own] = (&chunks[own] + arrived)?;
    }
    for step in 1..ranks {
        let (to, from) = partners(step);
        chunks[from] = exchange(rank, [to, from], &chunks[own], &chunks[from])?;
    }
    Ok(Tensor::cat(&chunks, 0)?.reshape(tensor.shape())?)
}

fn exchange(
    rank: &impl Communicator,
    [to, from]: [usize; 2],
    out: &Tensor,
    expected: &Tensor,
) -> Result<Tensor, Error> {
    // Wherever ranks stand in a circle, one of them sends to a smaller one, and receives first.
    if to > rank.rank() {
        rank.send(to, out)?;
        rank.recv(from, expected.shape(), expected.dtype())
    } else {
        let arrived = rank.recv(from, expected.shape(), expected.dtype())?;
        rank.send(to, out)?;
        Ok(arrived)
    }
}
