//! Trains one model split in several ways, and shows what each way costs.

mod arguments;
mod drawings;
mod outcome;
mod run;
mod table;
mod way;

use std::process::ExitCode;

use arguments::{Arguments, Prepared, Task};
use concise_wrapper::launch::Launch;
use harness::report::line;
use harness::{cli, interrupt};
use outcome::Outcome;
use table::Table;

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(begin())
}

/// Meets the other processes, if there are any, and begins if all of them can.
fn begin() -> anyhow::Result<()> {
    let (launch, task) = Launch::begin(Arguments::timeout, Arguments::task)?;
    let mut prepared = match task {
        Task::Train(prepared) => *prepared,
        Task::Draw(drawings) if launch.speaks() => return drawings.tell(),
        Task::Draw(_) => return Ok(()),
    };
    interrupt::watch()?;
    prepared.devices = launch.devices(&prepared.several)?;
    // Every process comes to the same cut: that of the first.
    let costs = launch.agree(prepared.measure(&launch))?;
    let planned = launch.agree(prepared.plan(&costs))?;
    run(prepared, planned, &launch)
}

/// All ways, one after the other; the process that speaks tells what comes out.
fn run(mut prepared: Prepared, planned: way::Planned, launch: &Launch) -> anyhow::Result<()> {
    let headline = prepared.headline();
    let speaks = launch.speaks();
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    if speaks {
        line(&headline)?;
        for note in planned.notes(&prepared.notes, prepared.cut.is_some()) {
            line(format_args!("note: {note}"))?;
        }
    }
    let mut outcomes: Vec<Outcome<'_>> = Vec::new();
    let mut trained = Ok(());
    for way in &planned.ways {
        if speaks {
            line(format_args!("\n{way}"))?;
        }
        // A signal may have reached one process alone, and all have to leave out the same.
        let outcome = launch.any(interrupt::requested()).map_err(anyhow::Error::from);
        let outcome = outcome.and_then(|interrupted| match interrupted {
            true if speaks => Ok(line("  left out after the interrupt").map(|()| None)?),
            true => Ok(None),
            false => run::run(way, &planned, &prepared, launch, &mut outputs),
        });
        match outcome {
            Ok(outcome) => outcomes.extend(outcome),
            // What the ways before it have shown is told all the same.
            Err(error) => {
                trained = Err(error);
                break;
            }
        }
    }
    if !speaks || outcomes.is_empty() {
        return trained;
    }
    let told = || -> anyhow::Result<()> {
        Table::new(&outcomes)?.tell()?;
        // Neither costs the other.
        let written = outputs.write(&headline);
        let drawn = prepared.gantt.as_deref();
        let drawn = drawn.map_or(Ok(()), |path| outcome::write_gantt(path, &headline, &outcomes));
        written?;
        drawn
    };
    // The first error is the one to tell.
    let told = told();
    trained.and(told)
}
