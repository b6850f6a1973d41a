//! An all-reduce in its two halves, with the update of the own chunk between them.

use candle_core::Tensor;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Error, SharedCommunicator};

pub fn step(
    comm: &SharedCommunicator,
    row: &Tensor,
    gradient: &Tensor,
    velocity: Option<&Tensor>,
    [momentum, rate]: [f64; 2],
) -> Result<(Tensor, Tensor), Error> {
    let numbers = row.elem_count();
    let own = chunk_range(numbers, comm.world_size(), comm.rank());
    let sum = comm.reduce_scatter(gradient)?;
    let velocity = match velocity {
        Some(velocity) => ((velocity * momentum)? + sum)?,
        None => sum,
    };
    let chunk = (row.narrow(0, own.start, own.len())? - (&velocity * rate)?)?;
    Ok((comm.all_gather(&chunk, numbers)?, velocity))
}

exercises::check!(ch07_zero1, step, run);
