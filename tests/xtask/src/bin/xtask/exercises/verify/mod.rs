//! `cargo xtask verify`: can the exercises be trusted?
//!
//! A check that accepts everything teaches nothing, so every exercise has answers that its check has to judge: the stub
//! that a learner starts from, our solution, and mistakes with the message that their author should see. All of them are
//! modules of one program, and each runs in a process of its own, so that none can hang or end another.

pub(super) mod build;
mod candidate;
mod form;
mod lints;

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::Duration;

use anyhow::bail;
pub(super) use candidate::{Candidate, Kind, run_all};
use harness::interrupt;
use harness::report::{counted, line};

use build::{Module, TARGET};
use course::exercises::cargo;
use course::exercises::tree::Tree;
use course::process::How;

/// Runs every check on every answer, and looks at what belongs to each exercise.
pub(crate) fn run(tree: &Tree, limit: Duration) -> anyhow::Result<()> {
    interrupt::watch()?;
    let mut problems: Vec<String> = form::problems(tree)?;
    let folder = tree.target.join("verify");
    let candidates = candidate::all(tree, &folder, &mut problems);
    let mut counts = Counts::default();
    let modules: Vec<Module> = candidates.iter().map(|one| one.module.clone()).collect();
    let mut command = build::command(tree, "build", &folder.join("candidates.rs"), &modules)?;
    command.arg("--message-format=json");
    let build = cargo::build(&mut command, stderr().is_terminal(), &|| true)?;
    match (build.how, build::executable(&build)) {
        (How::Interrupted, _) => return Ok(()),
        (_, None) => {
            let (_, rendered) = build::errors(&build);
            stderr().write_all(rendered.as_bytes())?;
            problems.push(format!("the test target `{TARGET}` does not compile\n{}", build.said));
        }
        (_, Some(executable)) => {
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
            let solutions: Vec<Module> =
                modules.into_iter().filter(|module| module.strict).collect();
            if !interrupt::requested() {
                problems.extend(lints::problems(tree, &folder, &solutions)?);
            }
            if interrupt::requested() {
                return Ok(());
            }
        }
    }
    for problem in &problems {
        line(format_args!("\n✗ {}", problem.trim_end()))?;
    }
    let Counts { stubs, solutions, mistakes } = counts;
    line(format_args!(
        "\n{}: {}, {} and {} were judged as they should be",
        counted(tree.exercises.len(), "exercise"),
        counted(stubs, "stub"),
        counted(solutions, "solution"),
        counted(mistakes, "mistake")
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
    mistakes: usize,
}

impl Counts {
    fn add(&mut self, kind: &Kind) {
        match kind {
            Kind::Stub { .. } => self.stubs += 1,
            Kind::Solution => self.solutions += 1,
            Kind::Mistake { .. } => self.mistakes += 1,
        }
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
