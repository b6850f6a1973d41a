// expect: law: with fewer elements than ranks some chunks are empty

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

/// Sends no empty chunks. Nobody told the rank that waits for them.
pub fn ring(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let flat = tensor.flatten_all()?.force_contiguous()?;
    let elements = flat.elem_count();
    let start = |chunk: usize| elements * chunk / ranks;
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
        let (out, into) = (before(step), before((step + 1) % ranks));
        chunks[into] = exchange(rank, &chunks[out], &chunks[into])?;
    }
    Ok(Tensor::cat(&chunks, 0)?.reshape(tensor.shape())?)
}

fn exchange(rank: &impl Communicator, out: &Tensor, expected: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let (next, previous) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    let send = || if out.elem_count() > 0 { rank.send(next, out) } else { Ok(()) };
    let receive = || rank.recv(previous, expected.shape(), expected.dtype());
    if own % 2 == 0 {
        send()?;
        receive()
    } else {
        let arrived = receive()?;
        send()?;
        Ok(arrived)
    }
}
