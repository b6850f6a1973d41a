//! One test binary, run in a process of its own until it ends or has to be ended.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use crate::process::{Group, How, Printed};

#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) how: How,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs a program that checks an answer, in the package's folder. What prints without end is ended, and so is what takes
/// ever more memory.
pub(super) fn run(
    executable: &Path,
    folder: &Path,
    arguments: &[&str],
    limit: Duration,
) -> anyhow::Result<Ended> {
    let (stdout, stderr) = (Printed::nothing()?, Printed::nothing()?);
    let mut command = Command::new(executable);
    command.args(arguments).current_dir(folder);
    // A backtrace of a check says nothing about the answer.
    command.env("RUST_BACKTRACE", "0");
    command.stdout(stdout.stream()?).stderr(stderr.stream()?);
    let group = Group::start(&mut command)
        .with_context(|| format!("{} cannot be started", executable.display()))?;
    let how = group.wait_if_modest(limit, &[&stdout, &stderr])?;
    Ok(Ended { how, stdout: stdout.text()?, stderr: stderr.text()? })
}
