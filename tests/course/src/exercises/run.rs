//! `cargo course run`: the stage's real program with the learner's answer in place of our code.
//!
//! The program of an exercise has two parts: its check, and its run. The run gets the learner's terminal, and prints what the
//! answer changed. A wrong answer runs too, because its effect is worth seeing.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use harness::cli::{ReportedElsewhere, UsageError};
use harness::interrupt;
use harness::report::line;

use super::build::{self, Speed};
use super::program::{self, Outcome};
use super::progress::{Fingerprint, Progress, Standing};
use super::tree::Tree;
use super::{RunArguments, report};
use crate::process::{Group, How};

/// Asks the program of an exercise for its run. Without this word, the program checks the answer.
const RUN: &str = "run";

/// Asks for PyTorch's runtime instead. The word comes before the last.
const IN_PYTORCH: &str = "in-pytorch";

/// The exercise whose answers are lists.
const LISTS: &str = "ch06_1f1b";

impl RunArguments {
    /// The words for the program of an exercise. Fails when PyTorch cannot execute its answer.
    pub(super) fn words(&self, name: &str) -> Result<&'static [&'static str], UsageError> {
        match self.in_pytorch {
            false => Ok(&[RUN]),
            true if name == LISTS => Ok(&[IN_PYTORCH, RUN]),
            true => Err(UsageError::new(format_args!(
                "--in-pytorch executes the lists of {LISTS}, and {name} has none"
            ))),
        }
    }
}

/// Runs the program with the answer. Fails when the answer does not compile, or its program ends with an error, a crash or
/// not at all.
pub fn run(tree: &Tree, arguments: &RunArguments) -> anyhow::Result<()> {
    interrupt::watch()?;
    let exercise = tree.named(&arguments.name)?;
    let name = &exercise.name;
    if !exercise.has_run() {
        let refusal =
            format!("{name} has no run: `cargo course check {name}` is all there is to it");
        return Err(UsageError::new(refusal).into());
    }
    let words = arguments.words(name)?;
    // Fails with the command that restores the file.
    exercise.text()?;
    let fingerprint = Fingerprint::of(exercise)?;
    let built = build::program_of(tree, exercise, &fingerprint, Speed::OfTheAnswer, &|| true)?;
    let executable = match built {
        Ok(executable) => executable,
        Err(Outcome::Interrupted) => return Ok(()),
        Err(outcome) => {
            report::show(tree, exercise, &outcome, false)?;
            bail!("{name} was not run: {}", outcome.verdict());
        }
    };
    let limit = arguments.limit.duration();
    if !execute(tree, &executable, words, name, limit)? {
        return Ok(());
    }
    if Progress::load(tree)?.of(exercise) == Standing::Solved {
        return Ok(());
    }
    let verdict = match program::run(&executable, &tree.package, &[], limit, &|| true)? {
        Outcome::Interrupted => return Ok(()),
        Outcome::Passed(_) => {
            format!("The answer passes its check: `cargo course check {name}` counts it.")
        }
        outcome => format!(
            "The answer does not pass its check: {} (cargo course check {name}).",
            outcome.verdict()
        ),
    };
    Ok(line(format_args!("\n{verdict}"))?)
}

/// Runs a program with answers, with these words, at the learner's terminal. Returns whether it has come to its end. Fails when the program ends
/// with an error, a crash or not at all.
pub(super) fn execute(
    tree: &Tree,
    executable: &Path,
    words: &[&str],
    name: &str,
    limit: Duration,
) -> anyhow::Result<bool> {
    let mut command = Command::new(executable);
    command.args(words).current_dir(&tree.root).env("RUST_BACKTRACE", "0");
    let group = Group::start(&mut command)
        .with_context(|| format!("{} cannot be started", executable.display()))?;
    match group.wait_if_modest(limit, None, &|| true)? {
        How::Interrupted => Ok(false),
        How::Alone(status) if status.success() => Ok(true),
        // The program has printed its error.
        How::Alone(status) if status.code() == Some(1) => Err(ReportedElsewhere(1).into()),
        How::Alone(status) => bail!("the run of {name} was ended by a crash ({status})"),
        How::OutOfTime => bail!("the run of {name} did not end within {} s", limit.as_secs()),
        How::TooMuch(excess) => bail!("the run of {name} {excess}"),
    }
}
