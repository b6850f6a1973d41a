//! The exercises, and the commands of a learner.
//!
//! An exercise is a file of the package `exercises`, and a program of that package, which checks the answer. The program
//! runs in its own process, so the learner's code cannot end or stall this tool.

mod build;
pub mod cargo;
mod check;
mod given;
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
use harness::cli::whole;

use progress::Progress;
use tree::{Exercise, Tree};

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
        #[command(flatten)]
        exercise: Named,
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
pub struct Named {
    /// Its name, or a part of it that no other has: ring [default: the next that is not solved]
    name: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct CheckArguments {
    #[command(flatten)]
    exercise: Named,

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

    /// Execute the lists of ch06_1f1b in PyTorch's pipelining runtime, if PyTorch is installed
    #[arg(long)]
    in_pytorch: bool,

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

/// How long a check or a run may take.
#[derive(Args, Clone, Copy, Debug)]
pub struct Limit {
    /// Seconds after which the answer's program is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole::<u64>(1..=3600))]
    limit: u64,
}

impl Limit {
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.limit)
    }
}

pub fn run(command: &Command) -> anyhow::Result<()> {
    let tree = Tree::find()?;
    given::keep(&tree)?;
    match command {
        Command::List => list::list(&tree),
        Command::Next => list::next(&tree),
        Command::Check(CheckArguments { exercise, all, limit }) => {
            exercise.with(&tree, |exercise| check::run(&tree, exercise, limit.duration(), *all))
        }
        Command::Watch(CheckArguments { exercise, all, limit }) => {
            exercise.with(&tree, |exercise| watch::run(&tree, exercise, limit.duration(), *all))
        }
        Command::Run(arguments) if arguments.name == mine::NAME => mine::run(&tree, arguments),
        Command::Run(arguments) => run::run(&tree, arguments),
        Command::Hint { exercise, all } => {
            exercise.with(&tree, |exercise| hint::run(&tree, exercise, *all))
        }
        Command::Solution(Asking { exercise, yes }) => {
            exercise.with(&tree, |exercise| reset::solution(&tree, exercise, *yes))
        }
        Command::Reset(Asking { exercise, yes }) => {
            exercise.with(&tree, |exercise| reset::run(&tree, exercise, *yes))
        }
    }
}

impl Named {
    /// Does the `work` for the exercise, if one is named or left.
    fn with(
        &self,
        tree: &Tree,
        work: impl FnOnce(&Exercise) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let next = || Ok(Progress::load(tree)?.next(tree));
        let named = |name: &String| tree.named(name).map(Some);
        self.name.as_ref().map_or_else(next, named)?.map_or_else(|| list::all_solved(tree), work)
    }
}
