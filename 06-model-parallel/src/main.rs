//! Trains one model split in several ways, and shows the cost of each way.

mod arguments;
mod draw;
mod plan;
mod report;
mod train;

use std::process::ExitCode;

use arguments::{Arguments, Task};
use concise_wrapper::launch::Launch;
use harness::report::line;
use harness::{cli, interrupt};
use report::{Outcome, report};
use train::train_way;

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
    // All processes cut the model alike, by the costs on the first process.
    let costs = launch.agree(prepared.measure(&launch))?;
    let plan = launch.agree(prepared.plan(&costs))?;
    let headline = prepared.setup.headline(&prepared.network.name());
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    if speaks {
        line(&headline)?;
        plan.notes.iter().try_for_each(|note| line(format_args!("note: {note}")))?;
    }
    let mut outcomes = Vec::new();
    let mut trained = Ok(());
    for way in &plan.ways {
        if speaks {
            line(format_args!("\n{}", way.title()))?;
        }
        // A signal may have reached one process alone, and all processes must leave out the same ways.
        let outcome = match launch.any(interrupt::requested()) {
            Ok(true) if speaks => line("  left out after the interrupt").map(|()| None)?,
            Ok(true) => None,
            Ok(false) => match train_way(way, &prepared, &launch, &mut outputs) {
                Ok(trained) => trained,
                // The results of the ways before are reported too.
                Err(error) => {
                    trained = Err(error);
                    break;
                }
            },
            Err(error) => {
                trained = Err(error.into());
                break;
            }
        };
        let outcome = outcome.map(|trained| Outcome::new(way, &prepared, trained, &mut outputs));
        outcomes.extend(outcome.transpose()?);
    }
    if speaks && !outcomes.is_empty() {
        let reported = report(&outcomes, &prepared, &headline, outputs);
        // The first error is the one to report.
        return trained.and(reported);
    }
    trained
}
