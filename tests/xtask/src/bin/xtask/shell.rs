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
    /// What it printed, on standard output and standard error, as a terminal would show it.
    pub(crate) output: String,
    pub(crate) seconds: f64,
}

/// Runs a command in a folder; nobody types, nothing is coloured, and cargo tells of failures only.
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn both_streams_are_kept_in_order() {
        let ended =
            run("echo a; echo b >&2; echo c; exit 3", Path::new("/"), Duration::from_secs(20));
        let ended = ended.unwrap();
        assert_eq!((ended.output.as_str(), ended.status.code()), ("a\nb\nc\n", Some(3)));
    }

    #[test]
    fn what_does_not_end_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let command = "(sleep 2; touch late) & sleep 60";
        let started = Instant::now();
        let error = run(command, folder.path(), Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("did not end within"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(2));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!folder.path().join("late").exists(), "a process lived on");
    }
}
