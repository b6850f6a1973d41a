//! The parts of every exercise: one TODO, the command that checks it, the steps of a hint. That page and exercise name each
//! other is a rule of the book.

use std::fs;

use anyhow::Context as _;
use course::exercises::hint;
use course::exercises::tree::{Exercise, Tree};

/// Fewer steps are no way from a nudge to the answer.
const STEPS: usize = 3;

/// Everything that is missing, of all exercises.
pub(super) fn problems(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    let answers = tree.package.with_file_name("answers");
    for entry in fs::read_dir(&answers).with_context(|| answers.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_listed = tree.exercises.iter().any(|exercise| exercise.name == name);
        if !is_listed && entry.path().is_dir() {
            problems
                .push(format!("{name}: the package's Cargo.toml has no [[bin]] with {name}.rs"));
        }
    }
    problems.sort();
    for exercise in &tree.exercises {
        let missing = missing(exercise);
        problems.extend(missing.into_iter().map(|what| format!("{}: {what}", exercise.name)));
    }
    Ok(problems)
}

fn missing(exercise: &Exercise) -> Vec<String> {
    let name = &exercise.name;
    let text = match fs::read_to_string(exercise.file()) {
        Ok(text) => text,
        Err(error) => return vec![format!("{name}.rs cannot be read: {error}")],
    };
    let check = fs::read_to_string(exercise.check()).unwrap_or_default();
    let todos = text.lines().filter(|line| line.trim_start().starts_with("// TODO")).count();
    let command = format!("cargo course check {name}");
    let steps = hint::steps(exercise).map_or(0, |steps| steps.len());
    [
        (
            check.lines().next() != text.lines().next(),
            format!("checks/{name}.rs and {name}.rs begin with different lines"),
        ),
        (todos != 1, format!("{name}.rs has {todos} lines `// TODO`, and not one")),
        (
            !text.contains(&command),
            format!("{name}.rs does not name the command that checks it, {command}"),
        ),
        (
            steps < STEPS,
            format!("hint.md has {steps} steps (lines that begin with `## `), at least {STEPS} are wanted"),
        ),
    ]
    .into_iter()
    .filter_map(|(wrong, what)| wrong.then_some(what))
    .collect()
}
