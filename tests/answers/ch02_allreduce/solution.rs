//! Rank 0 receives and adds in rank order, then sends the sum to each of the others.

use candle_core::Var;
use params_and_allreduce::communicator::{Communicator, Error};

pub fn allreduce(rank: &impl Communicator, gradients: &mut [Var]) -> Result<(), Error> {
    for gradient in gradients {
        let (shape, dtype) = (gradient.shape(), gradient.dtype());
        let sum = if rank.rank() == 0 {
            let mut sum = gradient.as_detached_tensor();
            for other in 1..rank.world_size() {
                sum = (sum + rank.recv(other, shape, dtype)?)?;
            }
            for other in 1..rank.world_size() {
                rank.send(other, &sum)?;
            }
            sum
        } else {
            rank.send(0, gradient)?;
            rank.recv(0, shape, dtype)?
        };
        // Alone, the sum is the variable itself, and there is nothing to write.
        if rank.world_size() > 1 {
            gradient.set(&sum)?;
        }
    }
    Ok(())
}

exercises::check!(ch02_allreduce, allreduce, run);
