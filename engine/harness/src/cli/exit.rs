//! How a binary ends: what it says about what went wrong, and its exit code.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::{ExitCode, exit};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error_hints::explained;
use super::parse;
use super::process;
use crate::interrupt;
use crate::report::{NobodyReads, remove_partial_files};

/// What takes longer than this, while a program ends, is stuck.
const IN_VAIN: Duration = Duration::from_secs(1);

/// A flag that makes no sense, alone or with the others.
#[derive(Debug)]
pub struct UsageError(String);

impl UsageError {
    /// With a message that names what was wrong and what would be right.
    pub fn new(message: impl fmt::Display) -> Self {
        Self(message.to_string())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// What somebody else has told already: nothing but an exit code is left of it.
///
/// Of several processes that were started together, one speaks for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldElsewhere(pub u8);

impl fmt::Display for ToldElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}, for a reason that is told elsewhere", self.0)
    }
}

impl std::error::Error for ToldElsewhere {}

/// A binary's `main`: parses the flags, runs, and turns the outcome into an exit code.
pub fn main<A: clap::Parser>(run: impl FnOnce(A) -> anyhow::Result<()>) -> ExitCode {
    process::prepare();
    conclude(parse::<A>().map_err(anyhow::Error::from).and_then(run))
}

/// Tells what went wrong, if anything did, and turns the outcome into an exit code: the end of `main`.
///
/// An outcome may be what clap makes of the command line, `--help` included.
pub fn conclude(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => interrupt::exit_code().map_or(ExitCode::SUCCESS, ExitCode::from),
        Err(error) => ExitCode::from(tell(&error)),
    }
}

/// Says on standard error what went wrong, and returns the exit code that goes with it.
///
/// `--help` is said on standard output.
pub fn tell(error: &anyhow::Error) -> u8 {
    if let Some(help) = error.downcast_ref::<clap::Error>().filter(|error| !error.use_stderr()) {
        // --help and --version; nobody listening is fine.
        let _ = help.print();
    }
    let Complaint { code, message } = Complaint::of(error);
    if let Some(message) = message {
        // In one piece, so that no other process's words come between; nobody listening is fine.
        let _ = io::stderr().write_all(format!("error: {message}\n").as_bytes());
    }
    code
}

/// Tells what went wrong where `main` cannot return, because a thread that it waits for does not end; then ends the program
/// with the exit code that goes with it. What was printed is passed on first, and no file is left half-written; what earlier
/// runs of the same call were to tell at its end is lost.
///
/// So ends a program that began with [`prepare`](super::prepare), as ours do. Any other process, such as your tests, is told
/// the same and goes on: whether it may be ended is for its `main` to say.
#[expect(clippy::disallowed_methods, reason = "where nothing can return")]
pub fn give_up(error: &anyhow::Error) {
    let Complaint { code, message } = Complaint::of(error);
    // There may be a progress bar in this line.
    let new_line = if io::stderr().is_terminal() { "\n" } else { "" };
    let message = format!("{new_line}error: {}\n", message.unwrap_or_default());
    at_most(IN_VAIN, move || {
        let _ = io::stderr().write_all(message.as_bytes());
    });
    if !process::may_be_ended() {
        return;
    }
    at_most(IN_VAIN, remove_partial_files);
    // This writes out what was printed, unless the thread that does not end is just printing: then it would never be its turn.
    exit(code.into())
}

/// Does something that may never end, as the thread that does not may be stuck in the same: a disk, or a pipe that nobody
/// reads.
fn at_most(limit: Duration, work: impl FnOnce() + Send + 'static) {
    let (working, done) = channel::<()>();
    let work = move || {
        work();
        drop(working);
    };
    if thread::Builder::new().spawn(work).is_ok() {
        let _ = done.recv_timeout(limit);
    }
}

/// How a process ends that could not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complaint {
    /// Its exit code: 2 for flags that make no sense, 1 for another failure, 0 for `--help`.
    pub code: u8,
    /// What it says, in one line; `None` where there is nothing to be said.
    pub message: Option<String>,
}

impl Complaint {
    /// What an error comes to.
    pub fn of(error: &anyhow::Error) -> Self {
        let (code, message) = if let Some(ToldElsewhere(code)) = error.downcast_ref() {
            (*code, None)
        } else if let Some(error) = error.downcast_ref::<clap::Error>() {
            match error.use_stderr() {
                true => (2, Some(one_line(&error.to_string()))),
                false => (0, None),
            }
        } else if error.is::<UsageError>() {
            (2, Some(error.to_string()))
        } else if nobody_is_reading(error) {
            (0, None)
        } else {
            (1, Some(explained(with_causes(error))))
        };
        Self { code, message }
    }
}

/// What an error says, and what its causes say that it does not say itself.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |told, cause| {
        if told.contains(&cause) { told } else { format!("{told}: {cause}") }
    })
}

/// Whether standard output was closed early, as `| head` does. That is the reader's right; that a pipe among the
/// run's files has no reader is a failure.
fn nobody_is_reading(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.get_ref().is_some_and(|inner| inner.is::<NobodyReads>()))
}

/// What clap says, without its usage and hints at `--help`, in one line.
fn one_line(message: &str) -> String {
    let told = message.split("\n\nUsage:").next().unwrap_or(message);
    let told = told.split("\n\nFor more information").next().unwrap_or(told);
    let told = told.strip_prefix("error: ").unwrap_or(told);
    let told = told.split("\n  tip: ");
    let parts = told.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_of_standard_output_may_leave_and_no_other() {
        let code = |error: io::Error| {
            Complaint::of(&anyhow::Error::from(error).context("while training")).code
        };
        assert_eq!(code(io::Error::new(io::ErrorKind::BrokenPipe, NobodyReads)), 0);
        assert_eq!(code(io::ErrorKind::BrokenPipe.into()), 1);
    }

    #[test]
    fn a_refusal_is_one_line() {
        let clap = "error: invalid value '0' for '--epochs <EPOCHS>': 0 is not in 1..=10\n\n\
                    For more information, try '--help'.\n";
        assert_eq!(one_line(clap), "invalid value '0' for '--epochs <EPOCHS>': 0 is not in 1..=10");
        let clap = "error: unexpected argument '--epocs' found\n\n  tip: a similar argument exists: \
                    '--epochs'\n\nUsage: single-gpu [OPTIONS]\n";
        let told = "unexpected argument '--epocs' found; a similar argument exists: '--epochs'";
        assert_eq!(one_line(clap), told);
    }
}
