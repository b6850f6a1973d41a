//! `cargo course verify`: can the exercises be trusted?
//!
//! A check that accepts everything teaches nothing, so every exercise brings answers that its check has to
//! judge: the stub that the reader starts from, our solution, and wrong answers with the message that their
//! author should see. All of them are compiled into one test target, `verify`, in a module each, and run in
//! a process each.

mod candidate;
mod form;
mod lints;

use std::time::Duration;

use anyhow::bail;
pub(super) use candidate::{Candidate, Kind, run_all};
use harness::interrupt;
use harness::report::{counted, line};

use super::compile::{self, Compiled};
use super::tree::Tree;

pub(super) const TARGET: &str = "verify";

/// Runs every check on every answer, and looks at what belongs to each exercise.
pub(crate) fn run(tree: &Tree, limit: Duration) -> anyhow::Result<()> {
    interrupt::watch()?;
    let mut problems: Vec<String> = form::problems(tree)?;
    let folder = tree.target.join("verify");
    let candidates = candidate::all(tree, &folder, &mut problems);
    let mut counts = Counts::default();
    match compile::compile(tree, TARGET, &folder)? {
        Compiled::Interrupted => return Ok(()),
        Compiled::Mistaken => {
            problems.push(format!("the test target `{TARGET}` does not compile"));
        }
        Compiled::Failed(said) => {
            let problem = format!("cargo failed to make the test target `{TARGET}`\n{said}");
            problems.push(problem.trim_end().to_owned());
        }
        Compiled::To(executable) => {
            let told = |candidate: &Candidate, outcome: &_| match candidate.judge(outcome) {
                Ok(()) => line(format_args!("✓ {candidate} {}", candidate.kind.praise())),
                Err(why) => line(format_args!("✗ {candidate}: {}", first_line(&why))),
            };
            for (candidate, outcome) in run_all(tree, &executable, &candidates, limit, told)? {
                match candidate.judge(&outcome) {
                    Ok(()) => counts.add(&candidate.kind),
                    Err(why) => problems.push(format!("{candidate}: {why}")),
                }
            }
            if interrupt::requested() {
                return Ok(());
            }
            problems.extend(lints::problems(tree)?);
            if interrupt::requested() {
                return Ok(());
            }
        }
    }
    for problem in &problems {
        line(format_args!("\n✗ {problem}"))?;
    }
    let Counts { stubs, solutions, wrong } = counts;
    line(format_args!(
        "\n{}: {}, {} and {} were judged as they should be",
        counted(tree.exercises.len(), "exercise"),
        counted(stubs, "stub"),
        counted(solutions, "solution"),
        counted(wrong, "wrong answer")
    ))?;
    match problems.len() {
        0 => Ok(()),
        problems => bail!("{}, told above", counted(problems, "problem")),
    }
}

#[derive(Debug, Default)]
struct Counts {
    stubs: usize,
    solutions: usize,
    wrong: usize,
}

impl Counts {
    fn add(&mut self, kind: &Kind) {
        match kind {
            Kind::Stub => self.stubs += 1,
            Kind::Solution => self.solutions += 1,
            Kind::Wrong { .. } => self.wrong += 1,
        }
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
