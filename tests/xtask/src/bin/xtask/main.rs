//! `cargo xtask`: the authors' tool.

mod book;
mod figures;
mod outputs;
mod peers;
mod shell;
mod verify;
mod walk;

use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::Parser;
use course::exercises::Limit;
use course::exercises::tree::Tree;
use harness::cli;
use harness::report::line;
use xtask::{interactive, machine, release, stored};

/// The authors' tool.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
#[command(override_usage = "cargo xtask <COMMAND>", arg_required_else_help = false)]
enum Command {
    /// Check the exercises: stubs fail, solutions pass, wrong answers get their messages
    Verify(Limit),
    /// Measure our code and PyTorch, Gloo and Open MPI on the same work, in turn
    Peers(peers::Arguments),
    /// Our side of it, in its own process
    #[command(hide = true)]
    PeersOurs(peers::ours::Arguments),
    /// Build the book with mdBook, and check that its pages load nothing from elsewhere
    Book,
    /// Make the book's recorded outputs anew, or check that they would come out again
    Outputs(outputs::Arguments),
    /// Draw the book's measured figures from its data
    Figures(figures::Arguments),
    /// Run every command of every page of the book
    Walk(walk::Arguments),
    /// Record the messages of each all-reduce, for the book's stepper
    Steps,
    /// Write down stage 6's pipeline schedules, for the book's figure
    Schedules,
    /// Write down stage 7's lists of sharded state, for the book's figure
    Sharded,
    /// Print this version's section of the changelog, if all files that name the version agree
    ReleaseNotes {
        /// The version to be released, which has to be the workspace's [default: the workspace's]
        version: Option<String>,
    },
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Verify(limit) => verify::run(&Tree::find()?, limit.duration()),
        Command::Peers(arguments) => peers::run(&arguments),
        Command::PeersOurs(arguments) => peers::ours::run(&arguments),
        Command::Book => book::build(),
        Command::Outputs(arguments) => outputs::run(&arguments),
        Command::Figures(arguments) => figures::run(&arguments),
        Command::Walk(arguments) => walk::run(&arguments),
        Command::Steps => book::write(interactive::steps()?),
        Command::Schedules => book::write(interactive::schedules()?),
        Command::Sharded => book::write(interactive::sharded()?),
        Command::ReleaseNotes { version } => release_notes(version.as_deref()),
    }
}

/// Prints the changelog's section of this version, if all files that name the version agree.
fn release_notes(asked: Option<&str>) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let asked = asked.unwrap_or(version);
    ensure!(
        asked == version,
        "version {asked} was asked for, and Cargo.toml has version {version}"
    );
    let [changelog, citation] = ["CHANGELOG.md", "CITATION.cff"].map(stored::text);
    match release::notes(version, &changelog?, &citation?) {
        Ok(notes) => Ok(line(notes)?),
        Err(wrong) => bail!("{}", wrong.join("; ")),
    }
}
