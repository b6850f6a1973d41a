//! An answer whose judgement is known beforehand.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context as _;
use harness::interrupt;

use super::super::check::Outcome;
use super::super::run;
use super::super::tree::Tree;

/// So many run at a time: they wait for each other's ranks more than they compute.
const AT_A_TIME: usize = 2;

/// An answer in the test target `verify`.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) kind: Kind,
    /// What the names of its tests begin with: `ch02_ring::wrong_drops_the_rest::`.
    pub(crate) filter: String,
    /// Its file, as it is told.
    file: String,
}

/// What has to become of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// It fails, in its own words.
    Stub,
    /// It passes.
    Solution,
    /// It fails with this text in a message, which its file has to tell.
    Wrong { expect: Option<String> },
}

impl Kind {
    /// What is said of an answer that was judged as it should be.
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

    /// Whether the check said of this answer what it should.
    ///
    /// # Errors
    ///
    /// What it said in place of that.
    pub(super) fn judge(&self, outcome: &Outcome) -> Result<(), String> {
        match (&self.kind, outcome) {
            (Kind::Solution, Outcome::Passed(_)) | (Kind::Stub, Outcome::Failed(..)) => Ok(()),
            (Kind::Stub, Outcome::Passed(_)) => {
                Err("passes: nothing is left to write, or the check accepts everything".to_owned())
            }
            (Kind::Wrong { .. }, Outcome::Passed(_)) => Err("passes, and is wrong".to_owned()),
            (Kind::Wrong { expect: None }, Outcome::Failed(..)) => {
                Err("its first line is not `// expect: TEXT`".to_owned())
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

/// What an outcome's author reads.
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

/// All answers of all exercises.
///
/// # Errors
///
/// When a folder or a file of wrong answers cannot be read.
pub(super) fn all(tree: &Tree) -> anyhow::Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for exercise in &tree.exercises {
        let mut add = |kind, module: &str, file: &Path| {
            let file = tree.relative(file).to_string();
            candidates.push(Candidate::new(&exercise.name, kind, module, file));
        };
        add(Kind::Stub, "stub", &exercise.file());
        add(Kind::Solution, "solution", &exercise.solution());
        for file in wrong_answers(&exercise.wrong())? {
            let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            add(Kind::Wrong { expect: expected(&text) }, &format!("wrong_{stem}"), &file);
        }
    }
    Ok(candidates)
}

/// The files of a folder of wrong answers, by name. There may be no folder.
///
/// # Errors
///
/// When the folder is there and cannot be read.
pub(super) fn wrong_answers(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    Ok(files)
}

/// The text that the author of a wrong answer should see: in its first line.
fn expected(text: &str) -> Option<String> {
    let expect = text.lines().next()?.strip_prefix("// expect: ")?.trim();
    (!expect.is_empty()).then(|| expect.to_owned())
}

/// Runs the check on every answer, a few at a time, and tells each outcome as it comes. After Ctrl-C the rest
/// is left out.
///
/// # Errors
///
/// When a process cannot be started or waited for, or nobody reads what is told.
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
