//! The known answers of all exercises, and the result that a check has to give for each.

use std::fs;
use std::path::{Path, PathBuf};

use course::exercises::program::Outcome;
use course::exercises::tree::Tree;
use xtask::stored;

use super::mistakes::{self, Known};

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
        self.name == "solution"
    }

    /// Compares the result of a check with the wanted result.
    pub(super) fn judge(&self, outcome: &Outcome) -> Result<(), String> {
        let messages = match outcome {
            Outcome::Failed(_, failures) => {
                failures.iter().map(|one| format!("{}: {}\n", one.law, one.message)).collect()
            }
            Outcome::CutShort { said, .. } => said.trim().to_owned(),
            _ => String::new(),
        };
        let but = |what: &str| Err(format!("{what}\n{messages}").trim_end().to_owned());
        match (&self.wanted, outcome) {
            (Wanted::Success, Outcome::Passed(_)) => Ok(()),
            (Wanted::Failure { .. }, Outcome::Passed(_)) => {
                Err("passes: nothing is left to write, or the check accepts everything".to_owned())
            }
            (Wanted::Message(_), Outcome::Passed(_)) => Err("passes, and is wrong".to_owned()),
            (Wanted::Failure { todo }, Outcome::Failed(_, failures)) => {
                let is_right = !todo || failures.iter().any(|failure| failure.todo);
                if is_right { Ok(()) } else { but("fails, and not because of its `todo!`") }
            }
            (Wanted::Message(text), Outcome::Failed(..)) if text.is_empty() => {
                Err("has no line `expect: TEXT`".to_owned())
            }
            (Wanted::Message(text), Outcome::Failed(_, failures)) => {
                let is_right = failures.iter().any(|failure| failure.message.contains(text));
                if is_right { Ok(()) } else { but(&format!("fails without \"{text}\", but with")) }
            }
            _ => but(&outcome.verdict()),
        }
    }
}

/// Lists all answers of all exercises, and writes the mistakes to a folder. Adds faults of their files to `problems`.
pub(super) fn all(
    tree: &Tree,
    folder: &Path,
    problems: &mut Vec<String>,
) -> anyhow::Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for exercise in &tree.exercises {
        let exercise_name = &exercise.name;
        let mut answer = |name: &str, path: PathBuf, source: String, wanted| {
            let (exercise, name) = (exercise_name.clone(), name.to_owned());
            answers.push(Answer { exercise, name, path, source, wanted });
        };
        let told = |path: &Path| tree.relative(path).to_string();
        let (stub, solution) = (exercise.file(), exercise.answer("solution.rs"));
        let todo = fs::read_to_string(&stub).is_ok_and(|text| text.contains("todo!("));
        answer("stub", stub.clone(), told(&stub), Wanted::Failure { todo });
        answer("solution", solution.clone(), told(&solution), Wanted::Success);
        for file in ["wrong.diff", "right.diff"] {
            let known = mistakes::of(exercise, file).unwrap_or_else(|error| {
                problems.push(format!("{exercise_name}: {error:#}"));
                Vec::new()
            });
            let is_wrong = file == "wrong.diff";
            if is_wrong && known.len() < MISTAKES {
                let number = known.len();
                problems.push(format!(
                    "{exercise_name}: {number} mistakes, at least {MISTAKES} are wanted"
                ));
            }
            for Known { name, expect, text } in known {
                let path = folder.join(exercise_name).join(format!("{name}.rs"));
                stored::write(&path, &text)?;
                let source = format!("{}, {name}", told(&exercise.answer(file)));
                let wanted = if is_wrong { Wanted::Message(expect) } else { Wanted::Success };
                answer(&name, path, source, wanted);
            }
        }
    }
    Ok(answers)
}
