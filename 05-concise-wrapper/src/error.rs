//! What can go wrong in a wrapped model.

use params_and_allreduce::communicator;
use scratch_data_parallel::breakage::RanAway;
use scratch_data_parallel::replicas::Differs;

/// Why training stopped.
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
    /// A checkpoint was not written, or cannot be used.
    #[error(transparent)]
    Checkpoint(Box<checkpoints::Error>),
    /// Two ranks were not started alike.
    #[error("rank {rank} has {what} {here}, rank {first} has {there}: start all ranks alike")]
    NotAlike {
        /// The rank that differs.
        rank: usize,
        /// The first of the ranks that compare: rank 0, or the first of some.
        first: usize,
        /// In what.
        what: String,
        /// Its value there.
        here: String,
        /// The first rank's.
        there: String,
    },
    /// The loss became infinite or not a number, as a bug on purpose makes it.
    #[error(transparent)]
    BrokenOnPurpose(#[from] RanAway),
    /// This rank's loss is not finite, and all others' are ordinary.
    #[error(
        "the loss of rank {rank}'s images is not finite, and other ranks' losses are: look at its images, and \
         at its device"
    )]
    LossOfRank {
        /// The first of them.
        rank: usize,
    },
    /// Replicas that should be equal are not.
    #[error(transparent)]
    ReplicasDiffer(#[from] Differs),
    /// A model of another kind has failed.
    #[error(transparent)]
    Model(Box<dyn std::error::Error + Send + Sync>),
    /// A device of a [`DataParallel`](crate::DataParallel) model has failed.
    #[error("{0}")]
    Device(String),
}

impl From<checkpoints::Error> for Error {
    fn from(error: checkpoints::Error) -> Self {
        // Its paths would make every result large.
        Self::Checkpoint(Box::new(error))
    }
}
