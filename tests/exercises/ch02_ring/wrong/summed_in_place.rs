// expect: that was written afterwards into the tensor that came in

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

/// Saves memory: writes the sum over what came in, and returns that.
pub fn ring(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let flat = tensor.flatten_all()?;
    let elements = flat.elem_count();
    let start = |chunk: usize| elements * chunk / ranks;
    let chunk = |chunk: usize| flat.narrow(0, start(chunk), start(chunk + 1) - start(chunk));
    let before = |back: usize| (own + ranks - back) % ranks;
    let write = |into: usize, sum: &Tensor| match sum.elem_count() {
        0 => Ok(()),
        _ => flat.slice_set(sum, 0, start(into)),
    };
    for step in 1..ranks {
        let (out, into) = (before(step), before((step + 1) % ranks));
        let arrived = exchange(rank, &chunk(out)?, &chunk(into)?)?;
        write(into, &(chunk(into)? + arrived)?)?;
    }
    for step in 0..ranks - 1 {
        let (out, into) = (before(step), before(step + 1));
        write(into, &exchange(rank, &chunk(out)?, &chunk(into)?)?)?;
    }
    // A rank alone has written nothing.
    if ranks == 1 { Ok(tensor.copy()?) } else { Ok(tensor.clone()) }
}

fn exchange(rank: &impl Communicator, out: &Tensor, expected: &Tensor) -> Result<Tensor, Error> {
    let (own, ranks) = (rank.rank(), rank.world_size());
    let (next, previous) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    let send = || rank.send(next, out);
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
