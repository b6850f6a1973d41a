//! The test target `verify` of the package `exercises`: all answers as modules of one program; and what clippy says of the
//! solutions, which are in no target that `cargo clippy` knows of.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use course::exercises::modules::{self, LENIENT, Module, Program};
use course::exercises::tree::{Exercise, Tree};
use course::process::{Group, How};

use super::answers::Answer;

/// The attributes of the module of a solution: the lints that the package's manifest leaves out.
const STRICT: &str = "#[warn(unused_imports, unused_variables, clippy::todo)]";

/// The capstone with our solutions, from each of these chapters on.
const CAPSTONES: [&str; 2] = ["ch01", "ch02"];

/// Has cargo compile answers into one program, or lint them: `action` is `build` or `clippy`. The file `list` is written
/// for that.
pub(super) fn command(
    tree: &Tree,
    action: &str,
    list: &Path,
    answers: &[Answer],
) -> anyhow::Result<Command> {
    let modules: Vec<Module<'_>> = answers
        .iter()
        .map(|answer| Module {
            exercise: &answer.exercise,
            name: &answer.name,
            path: answer.path.clone(),
            lints: if answer.is_solution() { STRICT } else { LENIENT },
        })
        .collect();
    let mains = modules.iter().map(|Module { exercise, name, .. }| {
        format!("        ({exercise:?}, {name:?}, {exercise}::{name}::main),\n")
    });
    let main = format!(
        "exercises::laws::choose(&[\n{}{}    ])",
        mains.collect::<String>(),
        capstones(tree, answers)
    );
    modules::command((action, Program::Verify), list, &modules, &main)
}

/// The capstone with our solutions, if this workspace has one: candidates such as `mine from_ch02`.
fn capstones(tree: &Tree, answers: &[Answer]) -> String {
    if !tree.package.join("runs/mine.rs").is_file() {
        return String::new();
    }
    let has_run = |answer: &&Answer| {
        let exercise = |it: &&Exercise| it.name == answer.exercise;
        answer.is_solution() && tree.exercises.iter().find(exercise).is_some_and(Exercise::has_run)
    };
    let from = |first: &str| {
        let solution = |Answer { exercise, name, .. }: &Answer| {
            let is_in = exercise.as_str() >= first;
            (exercise.clone(), if is_in { Ok(name.clone()) } else { Err("left out") })
        };
        let solutions: Vec<_> = answers.iter().filter(has_run).map(solution).collect();
        let mine = modules::mine(
            solutions.iter().map(|(name, it)| (name.as_str(), it.as_deref().map_err(|why| *why))),
        );
        format!("        (\"mine\", \"from_{first}\", || {mine}),\n")
    };
    CAPSTONES.map(from).concat()
}

/// The news that clippy has warnings about the solutions, which it prints on standard error.
pub(super) fn lints(
    tree: &Tree,
    folder: &Path,
    mut answers: Vec<Answer>,
) -> anyhow::Result<Option<String>> {
    answers.retain(Answer::is_solution);
    let mut clippy = command(tree, "clippy", &folder.join("solutions.rs"), &answers)?;
    clippy.args(["--quiet", "--", "--deny", "warnings"]).stdout(Stdio::null());
    let how = Group::start(&mut clippy).and_then(|group| group.wait(Duration::MAX));
    let is_quiet = matches!(how.context("cargo clippy")?, How::Alone(status) if status.success());
    let problem = "clippy has something to say of the solutions or checks, above";
    Ok((!is_quiet).then(|| problem.to_owned()))
}
