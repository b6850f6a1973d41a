//! `cargo course`: the tool around the course.

mod doctor;
mod peers;
mod steps;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use single_gpu::cli;

/// The tool around the course.
#[derive(Debug, Parser)]
#[command(name = "cargo course", bin_name = "cargo course", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Say what this machine has, which chapters run here, and how to get the rest
    Doctor,
    /// Measure our code and PyTorch, Gloo and Open MPI on the same work, in turn
    Peers(peers::Arguments),
    /// Our side of it, in a process of its own
    #[command(hide = true)]
    PeersOurs(peers::ours::Arguments),
    /// Record what each all-reduce sends, for the book's stepper
    Steps,
}

fn main() -> ExitCode {
    cli::main(|arguments: Arguments| match arguments.command {
        Command::Doctor => doctor::run(),
        Command::Peers(arguments) => peers::run(&arguments),
        Command::PeersOurs(arguments) => peers::ours::run(&arguments),
        Command::Steps => steps::run(),
    })
}
