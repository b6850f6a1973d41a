//! The learner's progress: the answers that passed, and the hints that were read, in a file that git ignores.
//!
//! The file lies in the folder `.course` of the checkout, so `cargo clean` does not remove the file. An entry is a fingerprint of
//! the text that passed: an edit makes the exercise unsolved.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base16ct::HexDisplay;
use harness::lock::has_no_locks;
use harness::report::file;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::tree::{self, Exercise, Tree};

/// The folder of a checkout for the learner's own files.
pub const FOLDER: &str = ".course";

#[derive(Debug)]
pub struct Progress {
    path: PathBuf,
    records: BTreeMap<String, Record>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// All answers that passed, each with its check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    passed: Vec<Fingerprint>,
    #[serde(default)]
    hints: usize,
}

/// The fingerprints of an answer and of its check.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    answer: String,
    check: String,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    Open,
    /// The exercise passed, and has changed since: the words before "changed", such as "it has".
    Changed(&'static str),
    Solved,
}

impl Progress {
    /// Reads the file. Without a file there is no progress. Fails when the file is malformed.
    pub fn load(tree: &Tree) -> anyhow::Result<Self> {
        let path = tree.root.join(FOLDER).join("progress.json");
        let told = || format!("{}, which remembers your progress", path.display());
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => "{}".into(),
            text => text.with_context(told)?,
        };
        let records = serde_json::from_slice(&text);
        let records = records.with_context(|| format!("{}; delete it to start over", told()))?;
        Ok(Self { path, records })
    }

    pub fn of(&self, exercise: &Exercise) -> Standing {
        let passed = self.records.get(&exercise.name).map_or(&[][..], |record| &record.passed);
        // An unreadable file has not passed.
        let (answer, check) = (hash(&exercise.file()).ok(), hash(&exercise.check()).ok());
        // Of the answers that passed, the nearest to the present one.
        let same = passed
            .iter()
            .map(|one| (answer.as_ref() == Some(&one.answer), check.as_ref() == Some(&one.check)));
        match same.max() {
            None => Standing::Open,
            Some((true, true)) => Standing::Solved,
            Some((true, false)) => Standing::Changed("its check has"),
            Some((false, true)) => Standing::Changed("it has"),
            Some((false, false)) => Standing::Changed("it and its check have"),
        }
    }

    pub fn next<'a>(&self, tree: &'a Tree) -> Option<&'a Exercise> {
        tree.exercises.iter().find(|exercise| self.of(exercise) != Standing::Solved)
    }

    pub fn remember_passed(
        tree: &Tree,
        exercise: &Exercise,
        passes: Fingerprint,
    ) -> anyhow::Result<()> {
        Self::change(tree, exercise, |Record { passed, .. }| {
            if !passed.contains(&passes) {
                passed.push(passes);
            }
        })
    }

    /// Returns the steps of the hint to be shown now, and remembers them. `choose` gets the number of steps that were shown
    /// before. Two calls at the same time get different steps.
    pub fn remember_hints(
        tree: &Tree,
        exercise: &Exercise,
        choose: impl FnOnce(usize) -> Range<usize>,
    ) -> anyhow::Result<Range<usize>> {
        Self::change(tree, exercise, |record| {
            let chosen = choose(record.hints);
            record.hints = chosen.end;
            chosen
        })
    }

    pub fn forget(tree: &Tree, exercise: &Exercise) -> anyhow::Result<()> {
        match Self::load(tree)?.records.contains_key(&exercise.name) {
            true => Self::change(tree, exercise, |record| *record = Record::default()),
            false => Ok(()),
        }
    }

    /// Changes the file. A lock keeps other processes from changing the file meanwhile.
    fn change<T>(
        tree: &Tree,
        exercise: &Exercise,
        change: impl FnOnce(&mut Record) -> T,
    ) -> anyhow::Result<T> {
        let folder = tree.root.join(FOLDER);
        fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
        // The lock has its own file, because the file of the progress is replaced as a whole.
        let path = folder.join("progress.lock");
        let told = || format!("{}", path.display());
        let lock = File::create(&path).with_context(told)?;
        match lock.lock() {
            // Some file systems have no locks.
            Err(error) if has_no_locks(&error) => {}
            locked => locked.with_context(told)?,
        }
        let mut progress = Self::load(tree)?;
        let result = change(progress.records.entry(exercise.name.clone()).or_default());
        let stored = file::write(&progress.path, |file| {
            serde_json::to_writer_pretty(&mut *file, &progress.records)?;
            writeln!(file)
        });
        stored.with_context(|| format!("{}", progress.path.display()))?;
        Ok(result)
    }
}

impl Fingerprint {
    pub fn of(exercise: &Exercise) -> anyhow::Result<Self> {
        Ok(Self { answer: hash(&exercise.file())?, check: hash(&exercise.check())? })
    }

    pub fn text(&self) -> String {
        format!("{} {}", self.answer, self.check)
    }
}

/// A hash of a file: of its length and its bytes.
fn hash(path: &Path) -> anyhow::Result<String> {
    let text = tree::read(path).with_context(|| format!("{}", path.display()))?;
    let hash = Sha256::new().chain_update((text.len() as u64).to_le_bytes()).chain_update(text);
    Ok(format!("{:x}", HexDisplay(&hash.finalize())))
}
