//! Predicts steps of training on several devices, runs them, and compares. With `--on-paper`, it only predicts.

mod arguments;
mod calibration;
mod conclusion;
mod experiment;
mod on_paper;
mod report;

use std::process::ExitCode;

use arguments::{Arguments, Task};
use harness::cli::{self, UsageError};
use harness::launcher;

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    launcher::check_alone().map_err(UsageError::new)?;
    match arguments.task()? {
        Task::Measure(experiments) => experiments.run(),
        Task::OnPaper(paper) => paper.print(),
    }
}
