//! The learner's step in chapter 4's training.

use std::error::Error;

use params_and_allreduce::Algorithm;
use scratch_data_parallel::Error as TrainError;
use single_gpu::lenet::Lenet;
use single_gpu::train::Step;
use split_batch::loader::LocalBatch;

use super::Peer;
use super::data_parallel::{OPTIONS, YourStep, show_steps};

/// A rank, its replica, its shard of the batch, the learning rate and the algorithm; the step.
pub type Answer = fn(&Peer, &Lenet, &LocalBatch, f64, Algorithm) -> Result<Step, TrainError>;

/// Trains with the learner's step, and with ours. Fails when the answer does.
pub fn run(step: Answer) -> Result<(), Box<dyn Error>> {
    let algorithm = Algorithm::default();
    let step: YourStep<'_> = &|rank, model, batch, rate| step(rank, model, batch, rate, algorithm);
    show_steps(step, algorithm, OPTIONS.epochs)
}
