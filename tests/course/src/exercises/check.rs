//! `cargo course check`: checks the learner's answer to an exercise.

use std::time::Duration;

use anyhow::bail;
use harness::interrupt;

use super::build::{self, Speed};
use super::program::{self, Outcome};
use super::progress::{Fingerprint, Progress};
use super::tree::{Exercise, Tree};
use super::{given, list, report};

/// Checks an exercise. With `all`, shows every broken law in full.
pub fn run(tree: &Tree, exercise: &Exercise, limit: Duration, all: bool) -> anyhow::Result<()> {
    interrupt::watch()?;
    let outcome = once(tree, exercise, limit, &|| true)?;
    report::show(tree, exercise, &outcome, all)?;
    match outcome {
        Outcome::Passed(_) => list::what_is_next(tree),
        // The exit code reports this.
        Outcome::Interrupted => Ok(()),
        Outcome::CargoFailed(_) => bail!("cargo failed, so {} was not checked", exercise.name),
        _ => bail!("{} does not pass yet: {}", exercise.name, outcome.verdict()),
    }
}

/// Checks an exercise while the result is `wanted`, and remembers an answer that passes.
pub fn once(
    tree: &Tree,
    exercise: &Exercise,
    limit: Duration,
    wanted: &dyn Fn() -> bool,
) -> anyhow::Result<Outcome> {
    // Fails with the command that restores the file.
    exercise.text()?;
    let checked = Fingerprint::of(exercise)?;
    let executable = match build::program_of(tree, exercise, &checked, Speed::OfTheBuild, wanted)? {
        Ok(executable) => executable,
        Err(outcome) => return Ok(outcome),
    };
    // If the learner saves during the build, the executable may be of either text. A text that was saved during the check
    // has not passed.
    let unchanged = || Fingerprint::of(exercise).is_ok_and(|now| now == checked);
    let as_compiled = unchanged();
    let outcome = program::run(&executable, &tree.package, &[], limit, wanted)?;
    if !matches!(outcome, Outcome::Passed(_)) {
        return Ok(outcome);
    }
    if given::edited_check(tree, exercise).is_some() {
        return Ok(Outcome::OfAnEditedCheck);
    }
    if as_compiled && unchanged() {
        Progress::remember_passed(tree, exercise, checked)?;
    }
    Ok(outcome)
}
