//! The parts of every exercise: one TODO, the steps of a hint, a page of the book that names it and is named by it.

use std::fs;

use anyhow::Context as _;

use course::exercises::hint;
use course::exercises::tree::{Exercise, Tree};

/// Fewer steps are no way from a nudge to the answer.
const STEPS: usize = 3;

fn todo(line: &str) -> bool {
    line.trim_start().starts_with("// TODO")
}

/// Everything that is missing, of all exercises.
pub(super) fn problems(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let mut problems = unlisted(tree)?;
    for exercise in &tree.exercises {
        let name = &exercise.name;
        problems
            .extend(of_exercise(tree, exercise).into_iter().map(|what| format!("{name}: {what}")));
    }
    Ok(problems)
}

/// Folders of answers without a program: no command would check this exercise.
fn unlisted(tree: &Tree) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    let answers = tree.package.with_file_name("answers");
    let told = || format!("{}", answers.display());
    for entry in fs::read_dir(&answers).with_context(told)? {
        let entry = entry.with_context(told)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let listed = tree.exercises.iter().any(|exercise| exercise.name == name);
        if !listed && entry.path().is_dir() {
            problems
                .push(format!("{name}: the package's Cargo.toml has no [[bin]] with {name}.rs"));
        }
    }
    problems.sort();
    Ok(problems)
}

fn of_exercise(tree: &Tree, exercise: &Exercise) -> Vec<String> {
    let mut problems = Vec::new();
    let name = &exercise.name;
    let text = match fs::read_to_string(exercise.file()) {
        Ok(text) => text,
        Err(error) => return vec![format!("{name}.rs cannot be read: {error}")],
    };
    let header = |text: &str| text.lines().next().map(str::to_owned);
    if fs::read_to_string(exercise.check()).ok().and_then(|check| header(&check)) != header(&text) {
        problems.push(format!("checks/{name}.rs and {name}.rs begin with different lines"));
    }
    match text.lines().filter(|line| todo(line)).count() {
        1 => {}
        number => problems.push(format!("{name}.rs has {number} lines `// TODO`, and not one")),
    }
    let command = format!("cargo course check {name}");
    if !text.contains(&command) {
        problems.push(format!("{name}.rs does not name the command that checks it, {command}"));
    }
    match hint::steps(exercise) {
        Ok(steps) if steps.len() >= STEPS => {}
        Ok(steps) => problems.push(format!(
            "hint.md has {} steps (lines that begin with `## `), at least {STEPS} are wanted",
            steps.len()
        )),
        Err(error) => problems.push(format!("{error:#}")),
    }
    match tree.page(exercise) {
        None => problems.push(format!("there is no page book/src/{}-….md", exercise.chapter())),
        Some(page) => {
            // As the reader writes it, on any system.
            let told = tree.relative(&page).to_string().replace('\\', "/");
            if !text.contains(&told) {
                problems.push(format!("{name}.rs does not name its chapter's page, {told}"));
            }
            if !fs::read_to_string(&page).unwrap_or_default().split(is_no_name).any(|w| w == name) {
                problems.push(format!("{told} does not name the exercise"));
            }
        }
    }
    problems
}

fn is_no_name(character: char) -> bool {
    !character.is_alphanumeric() && character != '_'
}
