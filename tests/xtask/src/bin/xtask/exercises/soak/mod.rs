//! `cargo xtask soak`: would the checks notice a small mistake?
//!
//! Each solution is changed in one small way at a time, and its check has to fail. A change that does not
//! compile says nothing and is left out; the others are viable. Of those at least nine in ten have to be
//! caught, and each survivor needs a reason, written down in [`survivors`].
//!
//! cargo-mutants builds the package once for each change. Here all changes of a solution are compiled at
//! once, as the mistakes are for `cargo xtask verify`, and run one by one.
//!
//! With `--kills` the command kills ranks of a training instead: both run for long and find what shows seldom.

mod mutate;
mod survivors;
mod viable;

use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context as _, bail};
use clap::Args;
use harness::interrupt;
use harness::report::{counted, line};

use super::verify::build::Module;
use super::verify::{Candidate, Kind, run_all};
use course::exercises::Limit;
use course::exercises::cargo::cargo;
use course::exercises::outcome::Outcome;
use course::exercises::tree::{Exercise, Tree};
use mutate::Mutant;
use survivors::Reasons;

/// So many of a hundred viable changes have to be caught.
const CAUGHT_PERCENT: usize = 90;

#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Only this exercise [default: all]
    name: Option<String>,

    /// In place of that, kill ranks of a training under mpirun at so many random moments (20, where no number is
    /// given), and see whether it ends with the weights of one that nothing happened to; it needs an MPI library
    #[arg(long, value_name = "TIMES", num_args = 0..=1, default_missing_value = "20", conflicts_with = "name")]
    kills: Option<NonZeroU32>,

    #[command(flatten)]
    limit: Limit,
}

/// Changes the solutions, tells which changes survive, and why they may.
pub(crate) fn run(tree: &Tree, arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(kills) = arguments.kills {
        return kill_ranks(&tree.root, kills);
    }
    interrupt::watch()?;
    let exercises: Vec<&Exercise> = match &arguments.name {
        Some(name) => vec![tree.named(name)?],
        None => tree.exercises.iter().collect(),
    };
    let mut reasons = Reasons::load(tree)?;
    let (mut problems, mut all) = (Vec::new(), Counts::default());
    for exercise in exercises {
        let Some(counts) = soak(tree, exercise, arguments.limit, &mut reasons, &mut problems)?
        else {
            return Ok(());
        };
        if counts.viable == 0 {
            problems
                .push(format!("{}: no change of it compiles, which says nothing", exercise.name));
        }
        if counts.caught * 100 < counts.viable * CAUGHT_PERCENT {
            let what = format!("{counts}: fewer than {CAUGHT_PERCENT} %");
            problems.push(format!("{}: {what}", exercise.name));
        }
        all.viable += counts.viable;
        all.caught += counts.caught;
        problems.extend(reasons.unused(&exercise.name));
    }
    for problem in &problems {
        line(format_args!("\n✗ {problem}"))?;
    }
    line(format_args!("\nin all: {all}"))?;
    match problems.len() {
        0 => Ok(()),
        problems => bail!("{}, told above", counted(problems, "problem")),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    viable: usize,
    caught: usize,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} viable changes are caught", self.caught, self.viable)
    }
}

/// Changes one solution and tells what became of it; none after Ctrl-C.
fn soak(
    tree: &Tree,
    exercise: &Exercise,
    limit: Limit,
    reasons: &mut Reasons,
    problems: &mut Vec<String>,
) -> anyhow::Result<Option<Counts>> {
    let mutants = mutate::mutants(&exercise.solution())?;
    let Some(viable) = viable::compile(tree, exercise, mutants)? else { return Ok(None) };
    let candidate = |(module, _): &(Module, Mutant)| {
        Candidate::new(Kind::Mistake { expect: None }, module.clone(), String::new())
    };
    let candidates: Vec<Candidate> = viable.mutants.iter().map(candidate).collect();
    let silently = |_: &Candidate, _: &Outcome| Ok(());
    let outcomes = run_all(tree, &viable.executable, &candidates, limit.duration(), silently)?;
    if interrupt::requested() {
        return Ok(None);
    }
    let survivors: Vec<&Mutant> = outcomes
        .iter()
        .zip(&viable.mutants)
        .filter(|((_, outcome), _)| matches!(outcome, Outcome::Passed(_)))
        .map(|(_, (_, mutant))| mutant)
        .collect();
    let viable = viable.mutants.len();
    let counts = Counts { viable, caught: viable - survivors.len() };
    line(format_args!("{}: {counts}", exercise.name))?;
    let solution = exercise.solution();
    for mutant in survivors {
        let Mutant { line: number, what, .. } = mutant;
        let place = format!("{}:{number}", tree.relative(&solution));
        match reasons.of(&exercise.name, mutant) {
            Some(reason) => line(format_args!("  {place}: {what} survives: {reason}"))?,
            None => {
                line(format_args!("  {place}: {what} survives"))?;
                problems.push(format!(
                    "{place}: {what} survives without a reason; either the check should notice it, or \
                     {} says why not:\n{}",
                    survivors::FILE,
                    survivors::entry(&exercise.name, mutant)
                ));
            }
        }
    }
    Ok(Some(counts))
}

/// Kills ranks of a training under `mpirun` at random moments: stage 5's test of it, which is too long for the ordinary run
/// of the tests.
fn kill_ranks(root: &Path, kills: NonZeroU32) -> anyhow::Result<()> {
    let status = cargo(root)
        .args(["test", "--release", "-p", "concise-wrapper", "--features", "mpi"])
        .args(["--test", "mpi", "--", "--ignored", "--nocapture", "kills"])
        .env("KILLS", kills.to_string())
        .status()
        .context("cargo cannot be started")?;
    if !status.success() {
        bail!("the run did not come through {kills} kills");
    }
    Ok(())
}
