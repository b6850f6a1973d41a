//! `cargo course`: the tool around the course.

mod book;
mod divergence;
mod doctor;
mod exercises;
mod figures;
mod install_tools;
mod machine;
mod outputs;
mod peers;
mod process;
mod release_notes;
mod shell;
mod walk;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use harness::cli;

/// The tool around the course.
#[derive(Debug, Parser)]
#[command(name = "cargo course", bin_name = "cargo course", version, after_help = for_authors())]
#[command(override_usage = "cargo course <COMMAND>")]
struct Arguments {
    // clap's own refusal would be the whole help, or name what is hidden too.
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Exercises(exercises::Command),
    /// Say what this machine has, which chapters run here, and how to get the rest
    Doctor,
    /// Measure our code and PyTorch, Gloo and Open MPI on the same work, in turn
    Peers(peers::Arguments),
    /// Our side of it, in a process of its own
    #[command(hide = true)]
    PeersOurs(peers::ours::Arguments),
    /// Install the programs that make the book, in the versions it is written for
    InstallTools(install_tools::Arguments),
    /// Build the book with mdBook, and check that its pages load nothing from elsewhere
    Book,
    /// Make the book's recorded outputs anew, or check that they would come out again
    #[command(hide = true)]
    Outputs(outputs::Arguments),
    /// Draw the book's measured figures from its data
    #[command(hide = true)]
    Figures(figures::Arguments),
    /// Run every command of every page of the book
    #[command(hide = true)]
    Walk(walk::Arguments),
    /// Record what each all-reduce sends, for the book's stepper
    #[command(hide = true)]
    Steps,
    /// Write down stage 6's pipeline schedules, for the book's figure
    #[command(hide = true)]
    Schedules,
    /// Write down what stage 7's cost model says, for the book's figure
    #[command(hide = true)]
    Scaling,
    /// Find the first step, rank and tensor in which two recordings of stage 5 part
    Divergence(divergence::Arguments),
    /// Print what the changelog says of this version, if all files that name it agree
    #[command(hide = true)]
    ReleaseNotes(release_notes::Arguments),
}

/// What is there for those who write the course, in the words of each command.
fn for_authors() -> String {
    let all = Command::augment_subcommands(clap::Command::new("course"));
    let hidden = all.get_subcommands().filter(|command| command.is_hide_set());
    // `peers` starts this one by itself.
    let told = hidden.filter(|command| command.get_name() != "peers-ours").map(|command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        format!("  {:<13}  {about}", command.get_name())
    });
    let told: Vec<String> = told.collect();
    format!("For those who write the course:\n{}", told.join("\n"))
}

/// What is said where no command was given.
fn which_command() -> cli::UsageError {
    let all = Command::augment_subcommands(clap::Command::new("course"));
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
    let names = names.join(", ");
    cli::UsageError::new(format_args!(
        "a command is missing, one of: {names} (`cargo course --help` says what they do)"
    ))
}

fn main() -> ExitCode {
    cli::conclude(cli::arguments().and_then(run))
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command.ok_or_else(which_command)? {
        Command::Exercises(command) => exercises::run(&command),
        Command::Doctor => doctor::run(),
        Command::Peers(arguments) => peers::run(&arguments),
        Command::PeersOurs(arguments) => peers::ours::run(&arguments),
        Command::InstallTools(arguments) => install_tools::run(&arguments),
        Command::Book => book::build(),
        Command::Outputs(arguments) => outputs::run(&arguments),
        Command::Figures(arguments) => figures::run(&arguments),
        Command::Walk(arguments) => walk::run(&arguments),
        Command::Steps => book::write_steps(),
        Command::Schedules => book::write_schedules(),
        Command::Scaling => book::write_scaling(),
        Command::Divergence(arguments) => divergence::run(&arguments),
        Command::ReleaseNotes(arguments) => release_notes::run(&arguments),
    }
}
