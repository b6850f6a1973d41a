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
use harness::report::Report;
use harness::{cli, interrupt};
use plan::Prepared;
use report::{Outcome, report};
use train::train_rank;

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run())
}

/// Makes all runs in turn. Several processes train together, and the process of rank 0 reports the results.
fn run() -> anyhow::Result<()> {
    let timeout = |flags: &Arguments| flags.launch.timeout();
    let (launch, prepared) = Launch::begin(timeout, Prepared::new)?;
    let Some(mut prepared) = prepared else { return Ok(()) };
    interrupt::watch()?;
    prepared.devices = launch.devices(&prepared.several)?;
    launch.agree(prepared.predict())?;
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    let headline = prepared.setup.headline(prepared.layers.name());
    launch.say(&headline)?;
    prepared.notes.iter().try_for_each(|note| launch.say(format_args!("note: {note}")))?;
    let mut outcomes = Vec::new();
    let trained = prepared.runs.iter().try_for_each(|run| {
        if !launch.announce(&run.name)? {
            return Ok(());
        }
        let report = if launch.speaks() { outputs.report(&run.name) } else { Report::silent() };
        let slow = prepared.slowness.filter(|_| run.replicas > 1);
        let slow = slow.map(|it| SlowNetwork::new(it, prepared.flags.launch.timeout()));
        let reports = report.of_ranks(run.plan.len()).into_iter();
        let tasks = reports.map(|report| (run, &prepared, slow.as_ref(), report)).collect();
        let trained = launch.run(&run.plan, tasks, train_rank)?.swap_remove(0);
        let outcome = Outcome::new(run, &prepared, trained, outcomes.first(), &mut outputs)?;
        outcomes.push(outcome);
        Ok(())
    });
    // After a failure, the earlier runs are reported. The failure stays the error of the program.
    let reports = launch.speaks() && !outcomes.is_empty();
    trained.and(if reports { report(&outcomes, &prepared, &headline, &outputs) } else { Ok(()) })
}
