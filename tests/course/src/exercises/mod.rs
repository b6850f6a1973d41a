//! The exercises, and the commands of a learner.
//!
//! An exercise is a file of the package `exercises`, and a program of that package, which checks the answer. The program
//! runs in its own process, so the learner's code cannot end or stall this tool.

mod build;
pub mod cargo;
mod check;
pub mod hint;
mod list;
mod mine;
pub mod modules;
pub mod program;
mod progress;
mod report;
mod reset;
mod run;
pub mod tree;
mod watch;

use std::time::Duration;

use clap::{Args, Subcommand};

use tree::Tree;

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// List the exercises, and which of them are solved
    List,
    /// Say which exercise is next, where it is, and what it asks for
    Next,
    /// Check an exercise: the one that is named, or the next
    Check(CheckArguments),
    /// Check again whenever the exercise is saved, and go on to the next once it passes
    Watch(CheckArguments),
    /// Run the stage's real program with your answer in place of our code, and compare
    Run(RunArguments),
    /// Show the next step of an exercise's hint
    Hint {
        /// Its name, or a part of it that no other has: ring [default: the next that is not solved]
        name: Option<String>,
        /// Show all steps
        #[arg(long)]
        all: bool,
    },
    /// Show our solution of an exercise
    Solution(Asking),
    /// Bring an exercise back as it was given, and put your version aside
    Reset(Asking),
}

#[derive(Args, Clone, Debug)]
pub struct CheckArguments {
    /// Its name, or a part of it that no other has: ring [default: the next that is not solved]
    name: Option<String>,

    /// Show every broken law in full, and all that the answer printed
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    limit: Limit,
}

#[derive(Args, Clone, Debug)]
pub struct RunArguments {
    /// Its name, or a part of it that no other has: ring; mine trains with all answers that pass
    name: String,

    #[command(flatten)]
    limit: Limit,
}

#[derive(Args, Clone, Debug)]
pub struct Asking {
    /// Its name, or a part of it that no other has: ring
    name: String,

    /// Do not ask first
    #[arg(long)]
    yes: bool,
}

/// How long a check or a run may take.
#[derive(Args, Clone, Copy, Debug)]
pub struct Limit {
    /// Seconds after which the answer's program is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
}

impl Limit {
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.limit)
    }
}

pub fn run(command: &Command) -> anyhow::Result<()> {
    let tree = Tree::find()?;
    reset::keep_given(&tree)?;
    match command {
        Command::List => list::list(&tree),
        Command::Next => list::next(&tree),
        Command::Check(arguments) => check::run(&tree, arguments),
        Command::Watch(arguments) => watch::run(&tree, arguments),
        Command::Run(RunArguments { name, limit }) if name == mine::NAME => {
            mine::run(&tree, limit.duration())
        }
        Command::Run(arguments) => run::run(&tree, arguments),
        Command::Hint { name, all } => hint::run(&tree, name.as_deref(), *all),
        Command::Solution(Asking { name, yes }) => reset::solution(&tree, tree.named(name)?, *yes),
        Command::Reset(Asking { name, yes }) => reset::run(&tree, tree.named(name)?, *yes),
    }
}
