//! The known answers of all exercises, and the result that a check has to give for each.

use std::fs;
use std::path::{Path, PathBuf};

use course::exercises::program::Outcome;
use course::exercises::tree::{Exercise, Tree};

use super::mistakes::{self, Mistake};

/// Each exercise has at least so many mistakes.
const MISTAKES: usize = 3;

/// An answer, as a module of the program `verify`.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) exercise: String,
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Where it comes from, for people.
    pub(super) source: String,
    pub(super) wanted: Wanted,
}

/// The result that a check has to give.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    Success,
    /// Of a stub: at its `todo!`, if it has one.
    Failure {
        todo: bool,
    },
    /// Of a mistake: with this text in a message.
    Message(String),
}

impl Answer {
    pub(super) fn is_solution(&self) -> bool {
        matches!(self.wanted, Wanted::Success)
    }

    /// Compares the result of a check with the wanted result.
    pub(super) fn judge(&self, outcome: &Outcome) -> Result<(), String> {
        let why = match (&self.wanted, outcome) {
            (Wanted::Success, Outcome::Passed(_)) => return Ok(()),
            (Wanted::Failure { .. }, Outcome::Passed(_)) => {
                "passes: nothing is left to write, or the check accepts everything".to_owned()
            }
            (Wanted::Message(_), Outcome::Passed(_)) => "passes, and is wrong".to_owned(),
            (Wanted::Failure { todo }, Outcome::Failed(_, failures)) => {
                if !todo || failures.iter().any(|failure| failure.todo) {
                    return Ok(());
                }
                format!("fails, and not because of its `todo!`\n{}", messages(outcome))
            }
            (Wanted::Message(text), Outcome::Failed(..)) if text.is_empty() => {
                "has no line `expect: TEXT`".to_owned()
            }
            (Wanted::Message(text), Outcome::Failed(_, failures)) => {
                if failures.iter().any(|failure| failure.message.contains(text)) {
                    return Ok(());
                }
                format!("fails without \"{text}\", but with\n{}", messages(outcome))
            }
            _ => format!("{}\n{}", outcome.verdict(), messages(outcome)),
        };
        Err(why.trim_end().to_owned())
    }
}

fn messages(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Failed(_, failures) => {
            let told = failures.iter().map(|one| format!("{}: {}", one.law, one.message));
            told.collect::<Vec<_>>().join("\n")
        }
        Outcome::CutShort { said, .. } => said.trim().to_owned(),
        _ => String::new(),
    }
}

/// Lists all answers of all exercises, and writes the mistakes to a folder. Adds faults of their files to `problems`.
pub(super) fn all(tree: &Tree, folder: &Path, problems: &mut Vec<String>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for exercise in &tree.exercises {
        let answer = |name: &str, path: PathBuf, source: String, wanted| {
            let (exercise, name) = (exercise.name.clone(), name.to_owned());
            Answer { exercise, name, path, source, wanted }
        };
        let told = |path: &Path| tree.relative(path).to_string();
        let (stub, solution) = (exercise.file(), exercise.solution());
        let todo = fs::read_to_string(&stub).is_ok_and(|text| text.contains("todo!("));
        let source = told(&stub);
        answers.push(answer("stub", stub, source, Wanted::Failure { todo }));
        let source = told(&solution);
        answers.push(answer("solution", solution, source, Wanted::Success));
        let mistakes = written(exercise, &folder.join(&exercise.name)).unwrap_or_else(|error| {
            problems.push(format!("{}: {error:#}", exercise.name));
            Vec::new()
        });
        if mistakes.len() < MISTAKES {
            let (name, number) = (&exercise.name, mistakes.len());
            problems.push(format!("{name}: {number} mistakes, at least {MISTAKES} are wanted"));
        }
        answers.extend(mistakes.into_iter().map(|(Mistake { name, expect, .. }, path)| {
            let source = format!("{}, {name}", told(&exercise.wrong()));
            answer(&name, path, source, Wanted::Message(expect))
        }));
    }
    answers
}

/// The mistakes of an exercise, and a file of each.
fn written(exercise: &Exercise, folder: &Path) -> anyhow::Result<Vec<(Mistake, PathBuf)>> {
    let mut written = Vec::new();
    for mistake in mistakes::of(exercise)? {
        let path = folder.join(format!("{}.rs", mistake.name));
        write(&path, &mistake.text)?;
        written.push((mistake, path));
    }
    Ok(written)
}

/// Writes a file. A file that would be the same is left alone, because cargo would compile it again.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        match fs::read_to_string(path) {
            Ok(old) if old == text => Ok(()),
            _ => fs::write(path, text),
        }
    };
    anyhow::Context::with_context(write(), || path.display().to_string())
}
