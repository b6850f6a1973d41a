//! The runs of exercises: a stage's real program with the learner's answer in place of our code, and the difference.
//!
//! `cargo course run NAME` starts the program of an exercise with the argument `run`. A wrong answer runs, too.

pub mod ch01_cross_entropy;
pub mod ch01_pool_gradient;
pub mod ch02_allreduce;
pub mod ch02_owners;
pub mod ch02_ring;
pub mod ch03_sampler;
pub mod ch04_accuracy;
pub mod ch04_batch_scaling;
pub mod ch04_fused_allreduce;
pub mod ch04_train_batch;
mod comparison;
mod data_parallel;
mod layers;
pub mod mine;

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

pub use data_parallel::Peer;

use crate::call::catch;

/// The argument that asks a program of an exercise for its run.
const RUN: &str = "run";

/// Whether this program is asked for its run, and not for a check.
pub fn is_asked() -> bool {
    std::env::args().next_back().is_some_and(|argument| argument == RUN)
}

/// Runs. If the answer fails or panics, standard error gets one line, and the exit code is 1.
pub fn main(run: impl FnOnce() -> Result<(), Box<dyn Error>>) -> ExitCode {
    // A panic on a rank comes back as an error, in one line.
    std::panic::set_hook(Box::new(|_| {}));
    let problem = match catch(run) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("the answer panicked: {panic}"),
    };
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "error: {}", problem.replace('\n', " "));
    ExitCode::FAILURE
}
