// expect: for each gradient every other rank sends one message, to rank 0, and rank 0 one to each

use candle_core::Var;
use params_and_allreduce::communicator::{Communicator, Error};

/// Sends everything to everyone: the right sum, for n − 1 times the messages.
pub fn allreduce(rank: &impl Communicator, gradients: &mut [Var]) -> Result<(), Error> {
    for gradient in gradients {
        let own = gradient.as_tensor().copy()?;
        for other in (0..rank.world_size()).filter(|&other| other != rank.rank()) {
            rank.send(other, &own)?;
        }
        let mut sum = own.zeros_like()?;
        for other in 0..rank.world_size() {
            sum = match other == rank.rank() {
                true => (sum + &own)?,
                false => (sum + rank.recv(other, own.shape(), own.dtype())?)?,
            };
        }
        gradient.set(&sum)?;
    }
    Ok(())
}
