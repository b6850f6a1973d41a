//! `cargo course`: the tool around the course.

mod doctor;

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

#[derive(Clone, Copy, Debug, Subcommand)]
enum Command {
    /// Say what this machine has, which chapters run here, and how to get the rest
    Doctor,
}

fn main() -> ExitCode {
    cli::main(|arguments: Arguments| match arguments.command {
        Command::Doctor => doctor::run(),
    })
}
