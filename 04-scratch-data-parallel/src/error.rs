//! What can go wrong in data-parallel training.

use params_and_allreduce::communicator;
use single_gpu::train;

use crate::breakage::Breakage;
use crate::replicas::Differs;

/// Why a rank stopped training.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// Another rank stopped, stalled, or does something else.
    #[error(transparent)]
    Communication(#[from] communicator::Error),
    /// The training loop stopped.
    #[error(transparent)]
    Train(#[from] train::Error),
    /// The loss became infinite or not a number, as was to be expected.
    #[error(
        "the loss is {loss} at step {step} of epoch {epoch}: this is what --break reduce-params does; \
         every step multiplies the weights by the number of devices"
    )]
    BrokenOnPurpose {
        /// Counted from 1.
        epoch: usize,
        /// Counted from 1, within the epoch.
        step: usize,
        /// The loss.
        loss: f64,
    },
    /// Replicas that should be equal are not.
    #[error(transparent)]
    ReplicasDiffer(#[from] Differs),
}

impl Error {
    /// Names the bug that was asked for as the cause, where it is one. The other bugs make smaller
    /// updates or the same: a loss that runs away with them does so without them.
    pub(crate) fn blame(self, breakage: Option<Breakage>) -> Self {
        match (self, breakage) {
            (
                Self::Train(train::Error::NotFinite { epoch, step, loss, .. }),
                Some(Breakage::ReduceParams),
            ) => Self::BrokenOnPurpose { epoch, step, loss },
            (other, _) => other,
        }
    }
}
