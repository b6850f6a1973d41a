//! The errors of data-parallel training.

use params_and_allreduce::communicator;

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
    /// Two replicas have different weights.
    #[error(transparent)]
    ReplicasDiffer(#[from] Differs),
}
