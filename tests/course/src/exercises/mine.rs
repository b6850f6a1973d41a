//! `cargo course run mine`: the capstone, training with all answers of the learner that pass their checks.

use anyhow::bail;
use harness::interrupt;

use super::RunArguments;
use super::build::{self, Speed};
use super::modules::{self, LENIENT, Module, Program};
use super::program::Outcome;
use super::progress::{Fingerprint, Progress, Standing};
use super::run::execute;
use super::tree::Tree;

/// The name of the capstone, which is no exercise.
pub const NAME: &str = "mine";

/// The module of an answer.
const ANSWER: &str = "yours";

/// Compiles the answers that have passed their checks into one program, and runs it. The answers of all other exercises are left
/// out. Fails when the program cannot be compiled, or ends with an error, a crash or not at all.
pub fn run(tree: &Tree, arguments: &RunArguments) -> anyhow::Result<()> {
    let words = arguments.words(NAME)?;
    interrupt::watch()?;
    let progress = Progress::load(tree)?;
    let (mut modules, mut answers, mut fingerprints) = (Vec::new(), Vec::new(), Vec::new());
    for exercise in tree.exercises.iter().filter(|exercise| exercise.has_run()) {
        let name = exercise.name.as_str();
        answers.push((
            name,
            match progress.of(exercise) {
                Standing::Solved => {
                    let path = exercise.file();
                    modules.push(Module { exercise: name, name: ANSWER, path, lints: LENIENT });
                    fingerprints.push(Fingerprint::of(exercise)?.text());
                    Ok(ANSWER)
                }
                Standing::Changed(_) => Err("changed since its check passed"),
                Standing::Open => Err("its check has not passed"),
            },
        ));
    }
    let list = tree.target.join("mine").join("answers.rs");
    let (action, main) = (("build", Program::Mine), modules::mine(answers));
    let command = modules::command(action, &list, &modules, &main)?;
    let (target, fingerprint) = (Program::Mine.name(), fingerprints.join(" "));
    let built = build::compile(tree, command, target, &fingerprint, Speed::OfTheAnswer, &|| true)?;
    match built {
        Ok(executable) => {
            execute(tree, &executable, words, NAME, arguments.limit.duration()).map(drop)
        }
        Err(Outcome::Interrupted) => Ok(()),
        Err(outcome) => bail!("your answers were not run: {}", outcome.verdict()),
    }
}
