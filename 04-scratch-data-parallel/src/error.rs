//! The errors of data-parallel training.

use params_and_allreduce::communicator;

use crate::breakage::{Breakage, RanAway};
use crate::replicas::Differs;

/// The reason why a rank stopped training.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// Another rank ended, sent nothing in time, or made another call.
    #[error(transparent)]
    Communication(#[from] communicator::Error),
    /// The training loop stopped.
    #[error(transparent)]
    Train(#[from] trainer::Error),
    /// The loss became infinite or NaN, as the deliberate bug makes it.
    #[error(transparent)]
    BrokenOnPurpose(#[from] RanAway),
    /// Two replicas have different weights.
    #[error(transparent)]
    ReplicasDiffer(#[from] Differs),
}

impl Error {
    /// Names a deliberate bug as the cause of this error, if the bug explains it.
    pub(crate) fn blame(self, breakage: Option<Breakage>) -> Self {
        let ran_away = match (&self, breakage) {
            (Self::Train(error), Some(breakage)) => breakage.explains(error),
            _ => None,
        };
        ran_away.map_or(self, Self::BrokenOnPurpose)
    }
}
