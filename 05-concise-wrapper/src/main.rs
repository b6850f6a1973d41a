//! Trains ResNet-18 or LeNet behind a wrapper, on one device and on several.

mod arguments;
mod comparison;
mod runs;

use std::process::ExitCode;

use arguments::{Arguments, Prepared};
use concise_wrapper::launch::Launch;
use harness::cli;
use harness::interrupt;
use harness::report::line;
use runs::{Run, Runs};

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(begin())
}

/// Meets the other processes, if there are any, and begins if all of them can.
fn begin() -> anyhow::Result<()> {
    let (launch, mut prepared) = Launch::begin(Arguments::timeout, Arguments::prepare)?;
    interrupt::watch()?;
    prepared.devices = launch.devices(&prepared.several)?;
    if launch.speaks() { run(prepared, &launch) } else { follow(prepared, &launch) }
}

/// The runs of a process that speaks.
fn run(mut prepared: Prepared, launch: &Launch) -> anyhow::Result<()> {
    let headline = prepared.headline();
    line(&headline)?;
    for note in prepared.notes() {
        line(format_args!("note: {note}"))?;
    }
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    if let Some(seeds) = prepared.compare {
        let compared = comparison::compare(&mut prepared, seeds, launch, &mut outputs);
        let written = outputs.write(&headline);
        compared?;
        return Ok(written?);
    }
    let mut runs = Runs::default();
    for planned in prepared.plan()? {
        line(format_args!("\n{planned}"))?;
        if interrupted(launch)? {
            line("  left out after the interrupt")?;
            continue;
        }
        match Run::train(&planned, &prepared, launch, &mut outputs) {
            Ok(run) => runs.push(run),
            Err(error) => {
                // What the runs before it have shown is told all the same, and no second error is.
                let _ = runs.tell(&mut outputs).and_then(|()| Ok(outputs.write(&headline)?));
                return Err(error);
            }
        }
    }
    runs.tell(&mut outputs)?;
    Ok(outputs.write(&headline)?)
}

/// Whether all leave the next run out. A signal may have reached one process alone.
fn interrupted(launch: &Launch) -> anyhow::Result<bool> {
    Ok(launch.any(interrupt::requested())?)
}

/// The same runs in a process for which rank 0's speaks.
fn follow(mut prepared: Prepared, launch: &Launch) -> anyhow::Result<()> {
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    for planned in prepared.plan()? {
        if interrupted(launch)? {
            continue;
        }
        Run::train(&planned, &prepared, launch, &mut outputs)?;
    }
    Ok(())
}
