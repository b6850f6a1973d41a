//! Chunk c starts at the rank after its owner, goes once around, and is whole when it reaches rank c. Then
//! it goes around once more.

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

pub fn ring(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let flat = tensor.flatten_all()?.force_contiguous()?;
    let elements = flat.elem_count();
    // Rounded down both times, so the end of one chunk is the start of the next.
    let start = |chunk: usize| elements * chunk / ranks;
    let mut chunks = (0..ranks)
        .map(|chunk| flat.narrow(0, start(chunk), start(chunk + 1) - start(chunk)))
        .collect::<candle_core::Result<Vec<_>>>()?;
    // The chunk that lies `back` places before this rank's own.
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

/// Sends a chunk to the next rank and receives one like `expected` from the one before.
fn exchange(rank: &impl Communicator, out: &Tensor, expected: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let (next, previous) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    // One rank that receives first is enough: the one before it can then send, and receive, and so on
    // all around. With every second rank it takes two rounds of waiting instead of k.
    if own % 2 == 0 {
        rank.send(next, out)?;
        rank.recv(previous, expected.shape(), expected.dtype())
    } else {
        let arrived = rank.recv(previous, expected.shape(), expected.dtype())?;
        rank.send(next, out)?;
        Ok(arrived)
    }
}

exercises::check!(ch02_ring, ring, run);
