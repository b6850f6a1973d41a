// expect: gradient 0 on rank 0 of 2 is wrong

use candle_core::Var;
use params_and_allreduce::communicator::{Communicator, Error};

/// Sends the sum to all others and forgets to keep it.
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
            rank.send(0, gradient)?;
            rank.recv(0, shape, dtype)?
        };
        if rank.world_size() > 1 {
            if rank.rank() > 0 {
                gradient.set(&sum)?;
            }
        }
    }
    Ok(())
}
