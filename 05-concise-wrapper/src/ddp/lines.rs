//! One rank's connections.

use std::sync::Arc;

use params_and_allreduce::communicator::SharedCommunicator;
#[cfg(feature = "mpi")]
use params_and_allreduce::mpi;
use params_and_allreduce::thread::Rank;

use crate::slow_link::{SlowLink, Slowness};

/// One rank's connections: two, so that two of its threads can talk at the same time.
#[derive(Clone)]
pub struct Lines {
    /// For the thread that computes.
    pub main: SharedCommunicator,
    /// For the thread that adds gradients up.
    pub background: SharedCommunicator,
}

impl Lines {
    /// The same connections, slowed down.
    pub fn slowed(self, slowness: Slowness) -> Self {
        let slow = |link| -> SharedCommunicator { Arc::new(SlowLink::new(link, slowness)) };
        Self { main: slow(self.main), background: slow(self.background) }
    }
}

impl From<&Rank<'_>> for Lines {
    fn from(rank: &Rank<'_>) -> Self {
        Self { main: Arc::new(rank.line()), background: Arc::new(rank.background_line()) }
    }
}

#[cfg(feature = "mpi")]
impl From<&mpi::Rank<'_>> for Lines {
    fn from(rank: &mpi::Rank<'_>) -> Self {
        Self { main: Arc::new(rank.line()), background: Arc::new(rank.background_line()) }
    }
}
