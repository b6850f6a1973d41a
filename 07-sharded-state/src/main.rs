//! Trains one model under several strategies, and shows what a device holds under each.

mod arguments;
mod draw;
mod plan;
mod report;
mod train;

use std::process::ExitCode;

use arguments::Arguments;
use concise_wrapper::launch::Launch;
use harness::cli;
use model_parallel::Timeline;
use plan::Prepared;
use train::train_rank;

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run())
}

/// Makes all runs in turn. Several processes train together, and the process of rank 0 reports the results.
fn run() -> anyhow::Result<()> {
    let timeout = |flags: &Arguments| flags.common.launch.timeout();
    let (launch, prepared) = Launch::begin(timeout, Prepared::new)?;
    let Some(mut prepared) = prepared else { return Ok(()) };
    launch.agree(cli::before_a_run("measuring the units", || prepared.predict())?)?;
    let outputs = std::mem::take(&mut prepared.training.setup.outputs);
    let Prepared { flags, training, runs } = prepared;
    training.make_runs(
        (&launch, &runs, outputs),
        |device, comm, run, report| train_rank((&flags, &training), device, comm, run, report),
        // All runs are compared with the first.
        (|_, _| true, Timeline::makespan),
        (flags.common.gantt.as_deref(), report::conclude),
    )
}
