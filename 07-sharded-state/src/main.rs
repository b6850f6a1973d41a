//! Trains one model under several strategies, and shows what a device holds under each.

mod arguments;
mod draw;
mod plan;
mod report;
mod train;

use std::process::ExitCode;

use arguments::Arguments;
use concise_wrapper::launch::Launch;
use concise_wrapper::slow_link::SlowNetwork;
use harness::cli;
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
    let mut outputs = std::mem::take(&mut prepared.training.setup.outputs);
    let headline = prepared.training.headline();
    let (outcomes, made) = launch.make_runs(
        (&headline, &prepared.training.notes),
        (&prepared.runs, &mut outputs),
        |run| (&run.name, run.name.clone()),
        |run, report| {
            let slow = prepared.slowness().filter(|_| run.mesh.devices() > 1);
            let slow = slow.map(|it| SlowNetwork::new(it, prepared.flags.common.launch.timeout()));
            let plan = prepared.training.plan(run.mesh.devices());
            let reports = report.of_ranks(plan.len()).into_iter();
            let tasks = reports.map(|report| (run, &prepared, slow.as_ref(), report)).collect();
            Ok(launch.run(plan, tasks, train_rank)?.swap_remove(0))
        },
        |run, trained, before, outputs| {
            report::outcome(run, trained, before.first(), (&launch, &prepared), outputs)
        },
    );
    // After a failure, the earlier runs are reported. The failure stays the error of the program.
    made.and(match &outcomes[..] {
        [_, ..] if launch.speaks() => report::report(&outcomes, &prepared, &headline, &outputs),
        _ => Ok(()),
    })
}
