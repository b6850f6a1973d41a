//! The runs of exercises: a stage's real program with the learner's answer in place of our code, and the difference.
//!
//! `cargo course run NAME` starts the program of an exercise with the argument `run`. A wrong answer runs, too.

pub mod ch01_cross_entropy;
pub mod ch01_pool_gradient;
pub mod ch02_allreduce;
pub mod ch02_hierarchical;
pub mod ch02_owners;
pub mod ch02_ring;
pub mod ch03_sampler;
pub mod ch04_accuracy;
pub mod ch04_batch_scaling;
pub mod ch04_fused_allreduce;
pub mod ch04_train_batch;
pub mod ch05_accumulate;
pub mod ch05_buckets;
pub mod ch05_overlap;
pub mod ch05_resume;
pub mod ch05_sync_batch_norm;
pub mod ch05_unequal_devices;
pub mod ch06_1f1b;
pub mod ch06_attention;
pub mod ch06_balance;
pub mod ch06_tensor_parallel;
pub mod ch06_two_stages;
pub mod ch07_fsdp;
pub mod ch07_prefetch;
pub mod ch07_recompute;
pub mod ch07_zero1;
pub mod ch08_predict;
mod data_parallel;
mod ddp;
mod layers;
pub mod mine;
mod pipeline;
mod prelude;
mod sharded;
mod training;

use std::error::Error;
use std::process::ExitCode;
use std::sync::OnceLock;

use concise_wrapper::Error as ModelError;
use harness::load::Load;
use harness::report::{error_line, paragraph};
use params_and_allreduce::thread::{Cause, RankFailure};
use scratch_data_parallel::Error as TrainError;

use crate::call::catch;

/// The argument that asks a program of an exercise for its run.
const RUN: &str = "run";

/// The processor times when the run began.
static BEGUN: OnceLock<Load> = OnceLock::new();

/// The result of a run, or of a part of it.
pub type Run<T = ()> = Result<T, Box<dyn Error>>;

/// Whether this program is asked for its run, and not for a check.
pub fn is_asked() -> bool {
    std::env::args().next_back().is_some_and(|argument| argument == RUN)
}

/// Whether the run should be in PyTorch: the argument before [`RUN`] asks for it.
fn in_pytorch() -> bool {
    std::env::args().any(|argument| argument == "in-pytorch")
}

/// Runs. If the answer fails or panics, standard error gets one line, and the exit code is 1. Replicas that differ are the effect of
/// an answer, and no failure.
pub fn main(run: impl FnOnce() -> Run) -> ExitCode {
    // The settings of the course's programs: without them, an answer's operations would share one pool of threads.
    harness::cli::prepare();
    BEGUN.get_or_init(Load::now);
    // A panic on a rank comes back as an error, in one line.
    std::panic::set_hook(Box::new(|_| {}));
    let problem = match catch(|| run().or_else(explained)) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("the answer panicked: {panic}"),
    };
    error_line(format_args!("error: {}", problem.replace('\n', " ")));
    ExitCode::FAILURE
}

/// A note if other programs have used the cores since the run began. Most runs have two devices, with a thread each.
fn busy() -> Option<String> {
    BEGUN.get_or_init(Load::now).note(2)
}

/// Prints this note, below times.
fn note_if_busy() -> std::io::Result<()> {
    busy().iter().try_for_each(|busy| paragraph(format_args!("note: {busy}")))
}

/// Explains replicas that differ. Any other error stays one.
fn explained(error: Box<dyn Error>) -> Run {
    let of_stage_4 = error.downcast_ref::<RankFailure<TrainError>>().map(|it| &it.cause);
    let of_stage_5 = error.downcast_ref::<RankFailure<ModelError>>().map(|it| &it.cause);
    let differ = match (of_stage_4, of_stage_5) {
        (Some(Cause::Error(TrainError::ReplicasDiffer(differ))), _)
        | (_, Some(Cause::Error(ModelError::ReplicasDiffer(differ)))) => differ,
        _ => return Err(error),
    };
    let only = "Nothing else fails: only the comparison of the replicas shows it.";
    Ok(paragraph(format_args!("The training with your code stops: {differ}. {only}"))?)
}
