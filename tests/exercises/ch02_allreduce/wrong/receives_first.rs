// expect: law: for each gradient every other rank sends one message, to rank 0, and rank 0 one to each

use candle_core::Var;
use params_and_allreduce::communicator::{Communicator, Error};

/// Waits for the sum before it has sent its part of it.
pub fn allreduce(rank: &impl Communicator, gradients: &mut [Var]) -> Result<(), Error> {
    for gradient in gradients {
        let (shape, dtype) = (&gradient.shape().clone(), gradient.dtype());
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
            let sum = rank.recv(0, shape, dtype)?;
            rank.send(0, gradient)?;
            sum
        };
        if rank.world_size() > 1 {
            gradient.set(&sum)?;
        }
    }
    Ok(())
}
