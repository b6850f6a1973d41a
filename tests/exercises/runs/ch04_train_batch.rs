//! The learner's step in chapter 4's training.

use std::error::Error;

use params_and_allreduce::Algorithm;
use scratch_data_parallel::{Error as TrainError, train_batch};
use single_gpu::lenet::Lenet;
use single_gpu::train::Step;
use split_batch::loader::LocalBatch;

use super::Peer;
use super::data_parallel::{OPTIONS, StepOf, show_steps};

/// A rank, its replica, its shard of the batch, the learning rate and the algorithm; the step.
pub type Answer = fn(&Peer, &Lenet, &LocalBatch, f64, Algorithm) -> Result<Step, TrainError>;

/// Trains with the learner's step, and with ours. Fails when the answer does.
pub fn run(step: Answer) -> Result<(), Box<dyn Error>> {
    let algorithm = Algorithm::default();
    let yours: StepOf<'_> =
        &|comm, model, batch, rate| step(&Peer(comm.clone()), model, batch, rate, algorithm);
    let ours: StepOf<'_> =
        &|comm, model, batch, rate| train_batch(&**comm, model, batch, rate, algorithm);
    show_steps(2, yours, &[(format!("{algorithm}, ours"), ours)], OPTIONS.epochs)
}
