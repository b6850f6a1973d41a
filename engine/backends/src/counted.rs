//! The bytes that a rank sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::forward;

// ANCHOR: counted
/// A rank that counts the bytes that it sends, on both of its connections.
#[derive(Clone)]
pub struct Counted {
    comm: SharedCommunicator,
    sent: Arc<AtomicU64>,
}

impl Counted {
    /// Counts from now on.
    pub fn new(comm: impl Into<SharedCommunicator>) -> Self {
        Self { comm: comm.into(), sent: Arc::default() }
    }

    /// The connection that counts, for everything that communicates.
    pub fn shared(&self) -> SharedCommunicator {
        Arc::new(self.clone())
    }

    /// The bytes that the rank has sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    fn count(&self, tensor: &Tensor) {
        self.sent.fetch_add(ops::size_in_bytes(tensor) as u64, Ordering::SeqCst);
    }
}

impl Communicator for Counted {
    forward!(comm: rank, world_size, device, recv, shares_memory, world_rank);

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.count(tensor);
        self.comm.send(to, tensor)
    }

    fn send_shared(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.count(tensor);
        self.comm.send_shared(to, tensor)
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        let (comm, sent) = (self.comm.background()?, Arc::clone(&self.sent));
        Ok(Arc::new(Self { comm, sent }))
    }

    fn leave(&self) -> Result<(), Error> {
        self.comm.leave()
    }
}
// ANCHOR_END: counted
