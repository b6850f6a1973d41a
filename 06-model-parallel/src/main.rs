//! Trains one model split in several ways, and shows the cost of each way.

mod arguments;
mod draw;
mod plan;
mod report;
mod train;

use std::process::ExitCode;

use arguments::{Arguments, Task};
use concise_wrapper::launch::Launch;
use harness::report::{Report, line};
use harness::{cli, interrupt};
use report::Outcome;
use train::{RankTask, train_rank};

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run())
}

/// Trains in all ways, one after the other, and reports the results. Several processes do so together, and one of them
/// reports.
fn run() -> anyhow::Result<()> {
    let (launch, task) = Launch::begin(Arguments::timeout, Arguments::task)?;
    let speaks = launch.speaks();
    let mut prepared = match task {
        Task::Train(prepared) => *prepared,
        Task::Draw(drawings) if speaks => return drawings.print(),
        Task::Draw(_) => return Ok(()),
    };
    interrupt::watch()?;
    prepared.devices = launch.devices(&prepared.several)?;
    let plan = prepared.plan(&launch)?;
    let headline = prepared.setup.headline(prepared.layers.name());
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    if speaks {
        line(&headline)?;
        plan.notes.iter().try_for_each(|note| line(format_args!("note: {note}")))?;
    }
    let (mut outcomes, mut failed) = (Vec::new(), Ok(()));
    for way in &plan.ways {
        if speaks {
            line(format_args!("\n{}", way.title()))?;
        }
        // A signal may have reached one process alone, and all processes must leave out the same ways.
        let trained = match launch.any(interrupt::requested()) {
            Ok(true) if speaks => line("  left out after the interrupt").map(|()| None)?,
            Ok(true) => None,
            Ok(false) => {
                let report = if speaks { outputs.report(&way.name) } else { Report::silent() };
                let tasks = RankTask::of_ranks(way, &prepared, report);
                match launch.run(prepared.devices_of(way), tasks, train_rank) {
                    Ok(mut of_ranks) => of_ranks.swap_remove(0),
                    // The results of the ways before are reported too.
                    Err(error) => {
                        failed = Err(error.into());
                        break;
                    }
                }
            }
            Err(error) => {
                failed = Err(error.into());
                break;
            }
        };
        let outcome = trained.map(|trained| Outcome::new(way, &prepared, trained, &mut outputs));
        outcomes.extend(outcome.transpose()?);
    }
    if speaks && !outcomes.is_empty() {
        let reported = report::report(&outcomes, &prepared, &headline, outputs);
        // The first error is the one to report.
        return failed.and(reported);
    }
    failed
}
