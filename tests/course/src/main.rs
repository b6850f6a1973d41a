//! `cargo course`: the learner's tool.

use std::process::ExitCode;

use clap::Parser;
use course::{divergence, doctor, exercises};
use harness::cli;

/// The learner's tool.
#[derive(Debug, Parser)]
#[command(name = "cargo course", bin_name = "cargo course", version)]
#[command(override_usage = "cargo course <COMMAND>", arg_required_else_help = false)]
enum Command {
    #[command(flatten)]
    Exercises(exercises::Command),
    /// Say what this machine has, which chapters run here, and how to get the rest
    Doctor,
    /// Find the first step, rank and tensor in which two recordings of stage 5 part
    Divergence(divergence::Arguments),
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Exercises(command) => exercises::run(&command),
        Command::Doctor => doctor::run(),
        Command::Divergence(arguments) => divergence::run(&arguments),
    }
}
