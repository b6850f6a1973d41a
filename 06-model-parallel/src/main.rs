//! Trains one model split in several ways, and shows the cost of each way.

mod arguments;
mod draw;
mod outcome;
mod plan;
mod report;
mod train;

use std::process::ExitCode;

use arguments::Arguments;
use concise_wrapper::launch::Launch;
use harness::report::Report;
use harness::{cli, interrupt};
use outcome::Outcome;
use plan::Prepared;
use train::train_rank;

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run())
}

/// Trains in all ways in turn. Several processes train together, and the process of rank 0 reports the results.
fn run() -> anyhow::Result<()> {
    let timeout = |flags: &Arguments| flags.launch.timeout();
    let (launch, prepared) = Launch::begin(timeout, Prepared::new)?;
    let Some(mut prepared) = prepared else { return Ok(()) };
    interrupt::watch()?;
    prepared.cut_by_cost(&launch)?;
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    let headline = prepared.setup.headline(prepared.layers.name());
    launch.say(&headline)?;
    for note in &prepared.notes {
        launch.say(format_args!("note: {note}"))?;
    }
    let (mut outcomes, mut failed) = (Vec::new(), Ok(()));
    for way in &prepared.ways {
        if !launch.announce(way.title())? {
            continue;
        }
        let report = if launch.speaks() { outputs.report(&way.name) } else { Report::silent() };
        let plan = prepared.devices_of(way);
        let reports = report.of_ranks(plan.len()).into_iter();
        let tasks = reports.map(|report| (way, &prepared, report)).collect();
        match launch.run(plan, tasks, train_rank) {
            Ok(mut of_ranks) => {
                if let Some(trained) = of_ranks.swap_remove(0) {
                    let outcome = Outcome::new(way, &prepared, trained, &outcomes, &mut outputs)?;
                    outcomes.push(outcome);
                }
            }
            Err(error) => {
                failed = Err(error.into());
                break;
            }
        }
    }
    // After a failure, the earlier ways are reported. The failure stays the error of the program.
    failed.and(report::report(&outcomes, &prepared, &headline, &outputs))
}
