//! `cargo xtask`: the tool of those who write the course.

mod book;
mod exercises;
mod figures;
mod install_tools;
mod machine;
mod outputs;
mod peers;
mod release_notes;
mod shell;
mod walk;

use std::process::ExitCode;

use clap::Parser;
use course::exercises::Limit;
use course::exercises::tree::Tree;
use exercises::{soak, verify};
use harness::cli;

/// The tool of those who write the course.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
#[command(override_usage = "cargo xtask <COMMAND>", arg_required_else_help = false)]
enum Command {
    /// Check the exercises: stubs fail, solutions pass, wrong answers get their messages
    Verify(Limit),
    /// Change solutions in small ways: do the checks notice? Or kill ranks (--kills)
    Soak(soak::Arguments),
    /// Measure our code and PyTorch, Gloo and Open MPI on the same work, in turn
    Peers(peers::Arguments),
    /// Our side of it, in a process of its own
    #[command(hide = true)]
    PeersOurs(peers::ours::Arguments),
    /// Install the programs that make the book, in the versions it is written for
    InstallTools(install_tools::Arguments),
    /// Build the book with mdBook, and check that its pages load nothing from elsewhere
    Book,
    /// Dedent the book's listings, as a preprocessor of mdBook
    #[command(hide = true)]
    Dedent(book::Asked),
    /// Make the book's recorded outputs anew, or check that they would come out again
    Outputs(outputs::Arguments),
    /// Draw the book's measured figures from its data
    Figures(figures::Arguments),
    /// Run every command of every page of the book
    Walk(walk::Arguments),
    /// Record what each all-reduce sends, for the book's stepper
    Steps,
    /// Write down stage 6's pipeline schedules, for the book's figure
    Schedules,
    /// Write down what stage 7's cost model says, for the book's figure
    Scaling,
    /// Print what the changelog says of this version, if all files that name it agree
    ReleaseNotes(release_notes::Arguments),
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Verify(limit) => verify::run(&Tree::find()?, limit.duration()),
        Command::Soak(arguments) => soak::run(&Tree::find()?, &arguments),
        Command::Peers(arguments) => peers::run(&arguments),
        Command::PeersOurs(arguments) => peers::ours::run(&arguments),
        Command::InstallTools(arguments) => install_tools::run(&arguments),
        Command::Book => book::build(),
        Command::Dedent(asked) => book::dedent(&asked),
        Command::Outputs(arguments) => outputs::run(&arguments),
        Command::Figures(arguments) => figures::run(&arguments),
        Command::Walk(arguments) => walk::run(&arguments),
        Command::Steps => book::write_steps(),
        Command::Schedules => book::write_schedules(),
        Command::Scaling => book::write_scaling(),
        Command::ReleaseNotes(arguments) => release_notes::run(&arguments),
    }
}
