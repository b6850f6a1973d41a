//! A connection that does something before it sends.

use std::sync::Arc;

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::forward;

/// Something that is done, or fails.
pub type Work = Arc<dyn Fn() -> Result<(), Error> + Send + Sync>;

/// The connections of a rank: the second one, in the background, does something else.
pub struct Before {
    pub comm: SharedCommunicator,
    pub first: Work,
    pub second: Work,
}

impl Communicator for Before {
    forward!(comm: rank, world_size, device, recv, shares_memory);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        (self.first)()?;
        self.comm.send(to, tensor)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        (self.first)()?;
        self.comm.send_shared(to, tensor)
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        let (comm, second) = (self.comm.background()?, &self.second);
        Ok(Arc::new(Self { comm, first: Arc::clone(second), second: Arc::clone(second) }))
    }
}
