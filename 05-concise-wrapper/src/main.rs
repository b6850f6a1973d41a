//! Trains ResNet-18 or LeNet behind a wrapper, on one device and on several.

mod arguments;
mod norms;
mod runs;

use std::process::ExitCode;

use arguments::Arguments;
use params_and_allreduce::mpirun;
use runs::{Run, Runs};
use single_gpu::cli::{self, UsageError};
use single_gpu::interrupt;
use single_gpu::report::line;

fn main() -> ExitCode {
    cli::main(run)
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(processes) = mpirun::world_size().filter(|processes| *processes > 1) {
        // Each of them would take itself for the whole run.
        return Err(UsageError::new(format_args!(
            "mpirun started {processes} processes, but this program's ranks are threads: start it without \
             mpirun, with --devices {processes}"
        ))
        .into());
    }
    let mut prepared = arguments.prepare()?;
    interrupt::watch()?;
    let headline = prepared.headline();
    line(&headline)?;
    for note in prepared.notes() {
        line(format_args!("note: {note}"))?;
    }
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    if let Some(seeds) = prepared.compare {
        norms::compare(&mut prepared, seeds, &mut outputs)?;
        return Ok(outputs.write(&headline)?);
    }
    let mut runs = Runs::default();
    for planned in prepared.plan()? {
        line(format_args!("\n{planned}"))?;
        if interrupt::requested() {
            line("  left out after the interrupt")?;
            continue;
        }
        match Run::train(&planned, &prepared, &mut outputs) {
            Ok(run) => runs.push(run),
            Err(error) => {
                // What the runs before it have shown is told all the same.
                runs.tell(&mut outputs)?;
                outputs.write(&headline)?;
                return Err(error);
            }
        }
    }
    runs.tell(&mut outputs)?;
    Ok(outputs.write(&headline)?)
}
