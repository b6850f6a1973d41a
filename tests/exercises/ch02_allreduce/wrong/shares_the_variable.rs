// expect: law: what is shared is not written to again

use candle_core::Var;
use params_and_allreduce::communicator::{Communicator, Error};

/// The others may still read rank 0's variable when the update writes to it.
pub fn allreduce(rank: &impl Communicator, gradients: &mut [Var]) -> Result<(), Error> {
    for gradient in gradients {
        let (shape, dtype) = (gradient.shape(), gradient.dtype());
        if rank.rank() == 0 {
            let mut sum = gradient.as_detached_tensor();
            for other in 1..rank.world_size() {
                sum = (sum + rank.recv(other, shape, dtype)?)?;
            }
            if rank.world_size() > 1 {
                gradient.set(&sum)?;
            }
            for other in 1..rank.world_size() {
                rank.send_shared(other, gradient.as_tensor())?;
            }
        } else {
            rank.send_shared(0, gradient.as_tensor())?;
            gradient.set(&rank.recv(0, shape, dtype)?)?;
        }
    }
    Ok(())
}
