//! The errors of a wrapped model.

use params_and_allreduce::communicator;
use scratch_data_parallel::replicas::Differs;

// ANCHOR: error
/// The reason why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// Another rank stopped, stalled, or made another call.
    #[error(transparent)]
    Communication(#[from] communicator::Error),
    /// The training loop stopped.
    #[error(transparent)]
    Train(#[from] trainer::Error),
    /// A checkpoint was not written, or does not fit.
    #[error(transparent)]
    Checkpoint(#[from] checkpoints::Error),
    /// Two ranks were not started alike. The text names both, and the setting.
    #[error("{0}: start all ranks alike")]
    NotAlike(String),
    /// The loss of this rank is not finite, and the losses of all other ranks are ordinary.
    #[error(
        "the loss of rank {0}'s images is not finite, and other ranks' losses are: look at its images, and \
         at its device"
    )]
    LossOfRank(usize),
    /// Replicas that must be equal differ.
    #[error(transparent)]
    ReplicasDiffer(#[from] Differs),
    /// A model of another crate has failed, or a device of a [`DataParallel`](crate::DataParallel) model.
    #[error(transparent)]
    Model(Box<dyn std::error::Error + Send + Sync>),
}
// ANCHOR_END: error
