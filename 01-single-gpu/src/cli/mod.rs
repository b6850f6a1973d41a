//! What the binaries of all stages share: flags, checks at the edge, exit codes.
//!
//! A mistake in the flags is one line on standard error and exit code 2. Anything else that goes wrong
//! is one line and exit code 1; a run that Ctrl-C ended early tells its results and has
//! exit code 130 (`SIGTERM`: 143). Nothing is written before everything has been checked.

mod arguments;
mod data;
mod process;
mod reports;

use std::fmt;
use std::io;
use std::process::ExitCode;

pub use arguments::{DeviceArguments, ElementType, SeveralDevices, TrainArguments, TrainSetup};
pub use data::DataArguments;
pub use process::prepare;
pub use reports::ReportArguments;

use crate::interrupt;

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

/// A binary's `main`: parses the flags, runs, and turns the outcome into an exit code.
pub fn main<A: clap::Parser>(run: impl FnOnce(A) -> anyhow::Result<()>) -> ExitCode {
    process::prepare();
    let arguments = match A::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if !error.use_stderr() => {
            // --help and --version; nobody listening is fine.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return refuse(one_line(&error.to_string())),
    };
    match run(arguments) {
        Ok(()) => interrupt::exit_code().map_or(ExitCode::SUCCESS, ExitCode::from),
        Err(error) if nobody_is_reading(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<UsageError>() => refuse(format!("error: {error}")),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(message: String) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(2)
}

/// Whether standard output was closed early, as `| head` does. That is the reader's right.
fn nobody_is_reading(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// What clap says, without its usage and hints at `--help`, in one line.
fn one_line(message: &str) -> String {
    let told = message.split("\n\nUsage:").next().unwrap_or(message);
    let told = told.split("\n\nFor more information").next().unwrap_or(told);
    told.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn a_refusal_is_one_line() {
        let clap = "error: invalid value '0' for '--epochs <EPOCHS>': 0 is not in 1..=10\n\n\
                    For more information, try '--help'.\n";
        assert_eq!(
            one_line(clap),
            "error: invalid value '0' for '--epochs <EPOCHS>': 0 is not in 1..=10"
        );
    }
}
