//! An answer, and the result that its check has to give.

use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use harness::interrupt;

use super::super::check::Outcome;
use super::super::run;
use super::super::tree::Tree;
use super::super::wrong::{self, Wrong};

/// So many run at a time: they wait for each other's ranks more than they compute.
const AT_A_TIME: usize = 2;

/// Each exercise has at least so many wrong answers.
const WRONG_ANSWERS: usize = 3;

/// An answer in the test target `verify`.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) kind: Kind,
    /// The names of its tests begin with this: `ch02_ring::wrong_drops_the_rest::`.
    pub(crate) filter: String,
    file: String,
}

/// The kind of an answer decides the result that the check has to give.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Stub,
    Solution,
    /// It fails with this text in a message.
    Wrong {
        expect: Option<String>,
    },
}

impl Kind {
    pub(super) fn praise(&self) -> &'static str {
        match self {
            Self::Stub => "fails",
            Self::Solution => "passes",
            Self::Wrong { .. } => "is rejected with its message",
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)
    }
}

impl Candidate {
    /// An answer that lies in `file` and is compiled as the exercise's module of that name.
    pub(crate) fn new(exercise: &str, kind: Kind, module: &str, file: String) -> Self {
        let filter = format!("{exercise}::{module}::");
        Self { kind, filter, file }
    }

    /// Compares the result of a check with the one that it has to give.
    pub(super) fn judge(&self, outcome: &Outcome) -> Result<(), String> {
        match (&self.kind, outcome) {
            (Kind::Solution, Outcome::Passed(_)) | (Kind::Stub, Outcome::Failed(..)) => Ok(()),
            (Kind::Stub, Outcome::Passed(_)) => {
                Err("passes: nothing is left to write, or the check accepts everything".to_owned())
            }
            (Kind::Wrong { .. }, Outcome::Passed(_)) => Err("passes, and is wrong".to_owned()),
            (Kind::Wrong { expect: None }, Outcome::Failed(..)) => {
                Err("has no line `expect: TEXT`".to_owned())
            }
            (Kind::Wrong { expect: Some(expect) }, Outcome::Failed(_, failures)) => {
                let told = failures.iter().any(|failure| failure.message.contains(expect));
                if told {
                    return Ok(());
                }
                Err(format!("is rejected without \"{expect}\", but with\n{}", messages(outcome)))
            }
            (_, outcome) => {
                Err(format!("{}\n{}", outcome.verdict(), messages(outcome)).trim_end().to_owned())
            }
        }
    }
}

fn messages(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Failed(_, failures) => {
            let told = failures.iter().map(|one| format!("{}: {}", one.check, one.message));
            told.collect::<Vec<_>>().join("\n")
        }
        Outcome::Crashed { said, .. } => said.trim().to_owned(),
        _ => String::new(),
    }
}

/// Lists all answers of all exercises, and writes the wrong ones to a folder. Adds faults of their files to `problems`.
pub(super) fn all(tree: &Tree, folder: &Path, problems: &mut Vec<String>) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for exercise in &tree.exercises {
        let name = &exercise.name;
        let mut add = |kind, module: &str, file: String| {
            candidates.push(Candidate::new(name, kind, module, file));
        };
        add(Kind::Stub, "stub", tree.relative(&exercise.given()).to_string());
        add(Kind::Solution, "solution", tree.relative(&exercise.solution()).to_string());
        let answers = wrong::answers(tree, exercise).and_then(|answers| {
            wrong::write(folder, exercise, answers.iter().map(|one| (&*one.name, &*one.text)))?;
            Ok(answers)
        });
        let answers = answers.unwrap_or_else(|error| {
            problems.push(format!("{name}: {error:#}"));
            Vec::new()
        });
        if answers.len() < WRONG_ANSWERS {
            let number = answers.len();
            problems.push(format!(
                "{name}: {number} wrong answers, at least {WRONG_ANSWERS} are wanted"
            ));
        }
        for Wrong { name, expect, .. } in answers {
            let file = format!("{}, {name}", tree.relative(&exercise.wrong()));
            add(Kind::Wrong { expect }, &format!("wrong_{name}"), file);
        }
    }
    candidates
}

/// Runs the check on every answer, a few at a time, and passes each outcome to `tell`. Ctrl-C leaves out the rest.
pub(crate) fn run_all<'a>(
    tree: &Tree,
    executable: &Path,
    candidates: &'a [Candidate],
    limit: Duration,
    tell: impl Fn(&Candidate, &Outcome) -> std::io::Result<()> + Sync,
) -> anyhow::Result<Vec<(&'a Candidate, Outcome)>> {
    let waiting = Mutex::new(candidates.iter().enumerate());
    let next = || waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
    let work = || -> anyhow::Result<Vec<(usize, Outcome)>> {
        let mut outcomes = Vec::new();
        while let Some((number, candidate)) = next() {
            let ended = run::run(executable, &tree.package, &candidate.filter, limit)?;
            let outcome = Outcome::of(ended, limit);
            if interrupt::requested() {
                break;
            }
            tell(candidate, &outcome)?;
            outcomes.push((number, outcome));
        }
        Ok(outcomes)
    };
    let mut outcomes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        let mut outcomes = Vec::new();
        for worker in workers {
            outcomes.extend(worker.join().expect("a worker returns its errors")?);
        }
        anyhow::Ok(outcomes)
    })?;
    outcomes.sort_by_key(|(number, _)| *number);
    Ok(outcomes.into_iter().map(|(number, outcome)| (&candidates[number], outcome)).collect())
}
