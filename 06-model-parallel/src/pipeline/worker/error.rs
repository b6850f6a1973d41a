//! How a stage tells what went wrong.

use params_and_allreduce::communicator;

use crate::pipeline::schedule::Instruction;

/// Why a stage did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An instruction failed, here or because another stage did not do its part.
    #[error("stage {stage}{}: {instruction} failed: {source}", of(*instruction))]
    Failed {
        /// The stage.
        stage: usize,
        /// What it was doing.
        instruction: Instruction,
        /// What happened.
        source: Box<concise_wrapper::Error>,
    },
    /// The stages did not come to know each other's shapes.
    #[error("stage {stage}, before the first step: {source}")]
    Start {
        /// The stage.
        stage: usize,
        /// What happened.
        source: Box<concise_wrapper::Error>,
    },
    /// A data set did not get through this stage.
    #[error("stage {stage}, evaluating: {source}")]
    Evaluation {
        /// The stage.
        stage: usize,
        /// What happened.
        source: Box<concise_wrapper::Error>,
    },
    /// What a rank meets before it is a stage, such as a device that does not open.
    #[error(transparent)]
    Outside(Box<concise_wrapper::Error>),
    /// As many ranks as stages are needed.
    #[error(
        "a schedule of {stages} stages needs {stages} ranks, one for each, and there are {ranks}"
    )]
    Ranks {
        /// How many stages the schedule has.
        stages: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// A schedule with several chunks of the model on a stage.
    #[error(
        "a schedule with {chunks} chunks on each stage can be checked and predicted, and is not executed: a \
         worker has one chunk. Naive, GPipe and 1F1B have one"
    )]
    Chunks {
        /// Chunks on each stage.
        chunks: usize,
    },
    /// A schedule whose backward pass comes in two halves.
    #[error(
        "stage {stage}: {instruction} can be checked and predicted, and is not executed: the backward pass of \
         a worker is in one piece. That of naive, GPipe and 1F1B is"
    )]
    HalfBackward {
        /// A stage that would have to.
        stage: usize,
        /// The half.
        instruction: Instruction,
    },
    /// A batch that is cut into another number of micro-batches than the schedule has.
    #[error("a batch of {found} micro-batches for a schedule of {expected}")]
    MicroBatches {
        /// What the batch has.
        found: usize,
        /// What the schedule has.
        expected: usize,
    },
}

/// `, micro-batch 3`; nothing for an update.
fn of(instruction: Instruction) -> String {
    let micro_batch = instruction.action.micro_batch();
    micro_batch.map(|i| format!(", micro-batch {i}")).unwrap_or_default()
}

/// As a [`Model`](concise_wrapper::Model) in stage 5's loop, a stage fails like this.
impl From<Error> for concise_wrapper::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Outside(error) => *error,
            error => Self::Model(Box::new(error)),
        }
    }
}

impl From<concise_wrapper::Error> for Error {
    fn from(error: concise_wrapper::Error) -> Self {
        Self::Outside(Box::new(error))
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        concise_wrapper::Error::from(error).into()
    }
}

impl From<communicator::Error> for Error {
    fn from(error: communicator::Error) -> Self {
        concise_wrapper::Error::from(error).into()
    }
}
