//! One rank's connections.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "mpi")]
use backends::mpi;
#[cfg(feature = "nccl")]
use backends::nccl;
use params_and_allreduce::communicator::{self, Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::Rank;

use crate::slow_link::{SlowLink, Slowness};

/// One rank's connections: two, so that two of its threads can talk at the same time.
#[derive(Clone)]
pub struct Lines {
    /// For the thread that computes.
    pub main: SharedCommunicator,
    /// For the thread that adds gradients up.
    pub background: SharedCommunicator,
    /// How long either waits for another rank before it gives up.
    pub timeout: Duration,
}

impl Lines {
    /// The connections of a rank.
    ///
    /// # Errors
    ///
    /// When the rank has one connection only.
    pub fn new(main: SharedCommunicator, timeout: Duration) -> Result<Self, communicator::Error> {
        Ok(Self { background: main.background()?, main, timeout })
    }

    /// The same connections, slowed down: together they have what the link has.
    pub fn slowed(self, slowness: Slowness) -> Self {
        let main = SlowLink::new(self.main, slowness, self.timeout);
        let background = Arc::new(main.with(self.background));
        Self { main: Arc::new(main), background, ..self }
    }
}

/// A rank's connections are made alike, wherever it comes from.
macro_rules! of_rank {
    ($rank:ty) => {
        impl From<&$rank> for Lines {
            fn from(rank: &$rank) -> Self {
                let main: SharedCommunicator = Arc::new(rank.clone());
                let background = rank.background().expect("each kind of rank has two connections");
                Self { main, background, timeout: rank.timeout() }
            }
        }
    };
}

of_rank!(Rank);
#[cfg(feature = "mpi")]
of_rank!(mpi::Rank);
#[cfg(feature = "nccl")]
of_rank!(nccl::Rank);

#[cfg(test)]
mod tests {
    use devices::DevicePlan;
    use params_and_allreduce::communicator::Error;
    use params_and_allreduce::thread::run_ranks;

    use super::*;

    #[test]
    fn lines_wait_as_long_as_their_rank() {
        let plan = DevicePlan::slices(2).unwrap();
        let timeout = Duration::from_secs(17);
        let slowness = Slowness { latency: Duration::ZERO, bandwidth: 1e9 };
        let timeouts = run_ranks(&plan, timeout, |rank| {
            Ok::<_, Error>(Lines::from(rank).slowed(slowness).timeout)
        });
        assert_eq!(timeouts.unwrap(), [timeout; 2]);
    }
}
