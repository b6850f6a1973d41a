//! `cargo course`: the learner's tool.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use course::{divergence, doctor, exercises};
use harness::cli;

/// The learner's tool.
#[derive(Debug, Parser)]
#[command(name = "cargo course", bin_name = "cargo course", version)]
#[command(override_usage = "cargo course <COMMAND>")]
struct Arguments {
    // clap's own error would be the whole help.
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Exercises(exercises::Command),
    /// Say what this machine has, which chapters run here, and how to get the rest
    Doctor,
    /// Find the first step, rank and tensor in which two recordings of stage 5 part
    Divergence(divergence::Arguments),
}

/// The error of a call without a command.
fn which_command() -> cli::UsageError {
    let all = Command::augment_subcommands(clap::Command::new("course"));
    let names: Vec<&str> = all.get_subcommands().map(clap::Command::get_name).collect();
    cli::UsageError::new(format_args!(
        "a command is missing, one of: {} (`cargo course --help` says what they do)",
        names.join(", ")
    ))
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command.ok_or_else(which_command)? {
        Command::Exercises(command) => exercises::run(&command),
        Command::Doctor => doctor::run(),
        Command::Divergence(arguments) => divergence::run(&arguments),
    }
}
