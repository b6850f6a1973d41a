//! Commands as a reader types them, with a limit of time.

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use course::exercises::cargo::forget_cargo;
use course::process::{self, Group, How, Printed};

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// The text on standard output and standard error, as a terminal would show it.
    pub(crate) output: String,
    pub(crate) seconds: f64,
}

/// Runs a command in a folder: without input, without colours, and with cargo's failures only.
pub(crate) fn run(command: &str, folder: &Path, limit: Duration) -> anyhow::Result<Ended> {
    let output = Printed::nothing()?;
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .current_dir(folder)
        .stdout(output.stream()?)
        .stderr(output.stream()?)
        .env("NO_COLOR", "1")
        .env("CARGO_TERM_COLOR", "never")
        .env("CARGO_TERM_QUIET", "true");
    forget_cargo(&mut shell);
    let started = Instant::now();
    let group =
        Group::start(&mut shell).context("sh, which runs the commands, cannot be started")?;
    let status = match group.wait(limit)? {
        How::Alone(status) => status,
        How::OutOfTime => bail!("did not end within {} s", limit.as_secs()),
        How::Interrupted => return Err(process::interrupted()),
        How::TooMuch(excess) => bail!("{excess}"),
    };
    let seconds = started.elapsed().as_secs_f64();
    Ok(Ended { status, output: output.text()?, seconds })
}
