//! Trains ResNet-18 or LeNet behind a wrapper, on one device and on several.

mod arguments;
mod comparison;
mod plan;
mod runs;

use std::fmt::Display;
use std::process::ExitCode;

use arguments::Arguments;
use concise_wrapper::launch::Launch;
use harness::cli;
use harness::interrupt;
use harness::report::line;
use plan::Prepared;

fn main() -> ExitCode {
    cli::prepare();
    cli::conclude(run())
}

/// Prepares and makes all runs, and reports them. Only the process of rank 0 reports.
fn run() -> anyhow::Result<()> {
    let timeout = |flags: &Arguments| flags.launch.timeout();
    let (launch, mut prepared) = Launch::begin(timeout, Prepared::new)?;
    interrupt::watch()?;
    let say = |text: &dyn Display| if launch.speaks() { line(text) } else { Ok(()) };
    let headline = prepared.headline();
    say(&headline)?;
    for note in &prepared.notes {
        say(&format_args!("note: {note}"))?;
    }
    let mut outputs = std::mem::take(&mut prepared.setup.outputs);
    let (mut finished, mut failed) = (Vec::new(), None);
    for planned in prepared.plan()? {
        say(&format_args!("\n{}", planned.title))?;
        // A signal may have reached one process alone.
        if launch.any(interrupt::requested())? {
            say(&"  left out after the interrupt")?;
            if prepared.flags.compare.is_some() {
                break;
            }
            continue;
        }
        match runs::train_run(planned, &prepared, &launch, &mut outputs) {
            Ok(run) => finished.push(run),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    // After a failure, the earlier runs are reported. The failure stays the error of the program.
    let reported = match prepared.flags.compare {
        _ if !launch.speaks() => Ok(()),
        Some(_) => comparison::report(&finished, prepared.flags.test_norm, &mut outputs),
        None => runs::report(&finished, &outputs),
    };
    let reported = reported.and_then(|()| Ok(outputs.write(&headline)?));
    failed.map_or(reported, Err)
}
