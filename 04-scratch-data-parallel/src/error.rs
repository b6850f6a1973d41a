//! What can go wrong in data-parallel training.

use params_and_allreduce::communicator;

use crate::breakage::{Breakage, RanAway};
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
    Train(#[from] trainer::Error),
    /// The loss became infinite or not a number, as was to be expected.
    #[error(transparent)]
    BrokenOnPurpose(#[from] RanAway),
    /// Replicas that should be equal are not.
    #[error(transparent)]
    ReplicasDiffer(#[from] Differs),
}

impl Error {
    /// Names the bug that was asked for as the cause, where it is one.
    pub(crate) fn blame(self, breakage: Option<Breakage>) -> Self {
        let ran_away = match (&self, breakage) {
            (Self::Train(error), Some(breakage)) => breakage.explains(error),
            _ => None,
        };
        ran_away.map_or(self, Self::BrokenOnPurpose)
    }
}
