//! The parts of every exercise: one TODO, the command that checks it, the steps of a hint. That page and exercise name each
//! other is a rule of the book.

use std::fs;

use anyhow::Context as _;
use course::exercises::hint;
use course::exercises::tree::Tree;

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
        let name = &exercise.name;
        let mut tell = |what: String| problems.push(format!("{name}: {what}"));
        let text = match fs::read_to_string(exercise.file()) {
            Ok(text) => text,
            Err(error) => {
                tell(format!("{name}.rs cannot be read: {error}"));
                continue;
            }
        };
        let check = fs::read_to_string(exercise.check()).unwrap_or_default();
        if check.lines().next() != text.lines().next() {
            tell(format!("checks/{name}.rs and {name}.rs begin with different lines"));
        }
        let todos = text.lines().filter(|line| line.trim_start().starts_with("// TODO")).count();
        if todos != 1 {
            tell(format!("{name}.rs has {todos} lines `// TODO`, and not one"));
        }
        let command = format!("cargo course check {name}");
        if !text.contains(&command) {
            tell(format!("{name}.rs does not name the command that checks it, {command}"));
        }
        let steps = hint::steps(exercise).map_or(0, |steps| steps.len());
        if steps < STEPS {
            let what = "lines that begin with `## `";
            tell(format!("hint.md has {steps} steps ({what}), at least {STEPS} are wanted"));
        }
    }
    Ok(problems)
}
