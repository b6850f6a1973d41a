//! One test binary, run in a process of its own until it ends or has to be ended.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use crate::process::{Group, How, Printed};

#[derive(Clone, Debug)]
pub struct Ended {
    pub how: How,
    pub stdout: String,
    pub stderr: String,
}

/// Runs those tests of a test binary whose names contain `filter`, in the package's folder as cargo does. What prints
/// without end is ended; so is what takes ever more memory, where the harness keeps what is printed.
pub fn run(
    executable: &Path,
    folder: &Path,
    filter: &str,
    limit: Duration,
) -> anyhow::Result<Ended> {
    let (stdout, stderr) = (Printed::nothing()?, Printed::nothing()?);
    let mut command = Command::new(executable);
    command.arg(filter).current_dir(folder);
    // One after the other: then the last line names the test that was running.
    command.args(["--test-threads=1", "--color=never"]);
    // Variables of the reader's shell, such as RUST_TEST_NOCAPTURE, would change what the harness prints.
    let of_harness = |name: &OsString| name.to_string_lossy().starts_with("RUST_TEST_");
    for (name, _) in env::vars_os().filter(|(name, _)| of_harness(name)) {
        command.env_remove(name);
    }
    // A backtrace of a check says nothing about the answer.
    command.env("RUST_BACKTRACE", "0");
    command.stdout(stdout.stream()?).stderr(stderr.stream()?);
    let group = Group::start(&mut command)
        .with_context(|| format!("{} cannot be started", executable.display()))?;
    let how = group.wait_if_modest(limit, &[&stdout, &stderr])?;
    Ok(Ended { how, stdout: stdout.text()?, stderr: stderr.text()? })
}
