//! An answer, and the result that its check has to give.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use harness::interrupt;

use super::super::wrong::{self, Mistake};
use super::build::Module;
use course::exercises::outcome::Outcome;
use course::exercises::program;
use course::exercises::tree::Tree;

/// So many run at a time: they wait for each other's ranks more than they compute.
const AT_A_TIME: usize = 3;

/// Each exercise has at least so many mistakes.
const MISTAKES: usize = 3;

/// An answer as a module of the program `verify`.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) kind: Kind,
    pub(crate) module: Module,
    /// Where the answer comes from.
    source: String,
}

/// The kind of an answer decides the result that the check has to give.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// The check comes to the `todo!`, if there is one.
    Stub {
        todo: bool,
    },
    Solution,
    /// The check fails with this text in a message.
    Mistake {
        expect: Option<String>,
    },
}

impl Kind {
    pub(super) fn praise(&self) -> &'static str {
        match self {
            Self::Stub { .. } => "fails",
            Self::Solution => "passes",
            Self::Mistake { .. } => "fails with its message",
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl Candidate {
    pub(crate) fn new(kind: Kind, module: Module, source: String) -> Self {
        Self { kind, module, source }
    }

    /// Compares the result of a check with the one that it has to give.
    pub(super) fn judge(&self, outcome: &Outcome) -> Result<(), String> {
        let Outcome::Failed(_, failures) = outcome else {
            return match (&self.kind, outcome) {
                (Kind::Solution, Outcome::Passed(_)) => Ok(()),
                (Kind::Stub { .. }, Outcome::Passed(_)) => {
                    Err("passes: nothing is left to write, or the check accepts everything".into())
                }
                (Kind::Mistake { .. }, Outcome::Passed(_)) => Err("passes, and is wrong".into()),
                _ => Err(verdict(outcome)),
            };
        };
        match &self.kind {
            Kind::Solution => Err(verdict(outcome)),
            Kind::Stub { todo: true } if !failures.iter().any(|failure| failure.todo) => {
                Err(format!("fails, and not because of its `todo!`\n{}", messages(outcome)))
            }
            Kind::Stub { .. } => Ok(()),
            Kind::Mistake { expect: None } => Err("has no line `expect: TEXT`".into()),
            Kind::Mistake { expect: Some(expect) } => {
                if failures.iter().any(|failure| failure.message.contains(expect)) {
                    return Ok(());
                }
                Err(format!("fails without \"{expect}\", but with\n{}", messages(outcome)))
            }
        }
    }
}

fn verdict(outcome: &Outcome) -> String {
    format!("{}\n{}", outcome.verdict(), messages(outcome)).trim_end().to_owned()
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
pub(super) fn all(tree: &Tree, folder: &Path, problems: &mut Vec<String>) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for exercise in &tree.exercises {
        let mut add = |kind, name: &str, path: &Path, source: String| {
            let (exercise, name, path) = (exercise.name.clone(), name.to_owned(), path.to_owned());
            let strict = matches!(kind, Kind::Solution);
            candidates.push(Candidate::new(kind, Module { exercise, name, path, strict }, source));
        };
        let todo = fs::read_to_string(exercise.file()).is_ok_and(|text| text.contains("todo!("));
        for (kind, name, path) in [
            (Kind::Stub { todo }, "stub", exercise.file()),
            (Kind::Solution, "solution", exercise.solution()),
        ] {
            add(kind, name, &path, tree.relative(&path).to_string());
        }
        let mistakes = wrong::mistakes(tree, exercise).and_then(|all| {
            wrong::write(folder, exercise, all.iter().map(|one| (&*one.name, &*one.text)))?;
            Ok(all)
        });
        let mistakes = mistakes.unwrap_or_else(|error| {
            problems.push(format!("{}: {error:#}", exercise.name));
            Vec::new()
        });
        if mistakes.len() < MISTAKES {
            let (name, number) = (&exercise.name, mistakes.len());
            problems.push(format!("{name}: {number} mistakes, at least {MISTAKES} are wanted"));
        }
        for Mistake { name, expect, .. } in mistakes {
            let source = format!("{}, {name}", tree.relative(&exercise.wrong()));
            let path = folder.join(&exercise.name).join(format!("{name}.rs"));
            add(Kind::Mistake { expect }, &name, &path, source);
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
            let Module { exercise, name, .. } = &candidate.module;
            let ended =
                program::run(executable, &tree.package, &[exercise, name], limit, &|| true)?;
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
