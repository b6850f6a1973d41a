//! The exercises: what there is, whether it is solved, what to do next; and whether their checks can be
//! trusted.
//!
//! An exercise is a folder of the package `exercises`. Its check is a test target of that package, compiled
//! with the reader's `exercise.rs` and run in a process of its own, so that nothing in the reader's code can
//! end or stall this tool.

pub mod cargo;
pub mod check;
pub mod compile;
pub mod hint;
pub mod list;
pub mod messages;
pub mod progress;
pub mod reset;
pub mod run;
pub mod solution;
pub mod tree;
pub mod watch;

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

/// An exercise that has to be named.
#[derive(Args, Clone, Debug)]
pub struct Named {
    /// Its name, or a part of it that no other has: ring
    name: String,
}

#[derive(Args, Clone, Debug)]
pub struct CheckArguments {
    /// Its name, or a part of it that no other has: ring [default: the next that is not solved]
    name: Option<String>,

    #[command(flatten)]
    limit: Limit,
}

#[derive(Args, Clone, Debug)]
pub struct Asking {
    #[command(flatten)]
    exercise: Named,

    /// Do not ask first
    #[arg(long)]
    yes: bool,
}

/// How long a check may take.
#[derive(Args, Clone, Copy, Debug)]
pub struct Limit {
    /// Seconds after which a check that has not ended is ended
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
    match command {
        Command::List => list::list(&tree),
        Command::Next => list::next(&tree),
        Command::Check(arguments) => {
            check::run(&tree, arguments.name.as_deref(), arguments.limit.duration())
        }
        Command::Watch(arguments) => {
            watch::run(&tree, arguments.name.as_deref(), arguments.limit.duration())
        }
        Command::Hint { name, all } => hint::run(&tree, name.as_deref(), *all),
        Command::Solution(Asking { exercise, yes }) => {
            solution::run(&tree, tree.named(&exercise.name)?, *yes)
        }
        Command::Reset(Asking { exercise, yes }) => {
            reset::run(&tree, tree.named(&exercise.name)?, *yes)
        }
    }
}
