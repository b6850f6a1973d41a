//! The learner's step in chapter 4's training.

use super::data_parallel::{our_step, show_steps};
use super::prelude::*;
pub use crate::checks::ch04_train_batch::Answer;

/// Trains with the learner's step, and with ours. Fails with the answer.
pub fn run(step: Answer) -> Run {
    let algorithm = Algorithm::default();
    let ours = [(&*format!("{algorithm}, ours"), &our_step(algorithm) as _)];
    let yours = |comm: &SharedCommunicator, model: &_, batch: &_, rate| {
        step(&Peer::new(comm.clone()), model, batch, rate, algorithm)
    };
    show_steps(2, &yours, &ours)
}
