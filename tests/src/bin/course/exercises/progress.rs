//! What has passed, and which hints were read: a file of the reader's own, which git ignores.
//!
//! It lies beside the sources and not among what cargo builds, so `cargo clean` does not forget it. What is
//! remembered is not a name but the very text that passed: an edit afterwards makes the exercise unsolved.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use single_gpu::report::file;

use super::tree::{self, Exercise, Tree};

/// The folder of a checkout for what is its reader's own.
pub(super) const FOLDER: &str = ".course";

/// What is remembered of all exercises.
#[derive(Debug)]
pub(super) struct Progress {
    path: PathBuf,
    records: BTreeMap<String, Record>,
}

/// What is remembered of one exercise.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// The fingerprint of the answer that passed last, and of its check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    passed: Option<String>,
    /// How many steps of the hint were read.
    #[serde(default)]
    hints: usize,
}

/// What is known of an exercise.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Standing {
    /// It has not passed yet.
    Open,
    /// It passed, and the answer or its check is another since.
    Changed,
    /// It passed as it is.
    Solved,
}

impl Progress {
    /// Reads what is remembered: nothing, where nothing was written yet.
    ///
    /// # Errors
    ///
    /// When the file is there and cannot be read or understood.
    pub(super) fn load(tree: &Tree) -> anyhow::Result<Self> {
        let path = tree.root.join(FOLDER).join("progress.json");
        let told = || format!("{}, which remembers your progress", path.display());
        let records = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{}; delete it to start over", told()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(told),
        };
        Ok(Self { path, records })
    }

    /// What is known of an exercise as it is now.
    pub(super) fn of(&self, exercise: &Exercise) -> Standing {
        match self.records.get(&exercise.name).and_then(|record| record.passed.as_ref()) {
            None => Standing::Open,
            Some(passed) => match fingerprint(exercise) {
                Ok(now) if now == *passed => Standing::Solved,
                _ => Standing::Changed,
            },
        }
    }

    /// The first exercise that is not solved.
    pub(super) fn next<'a>(&self, tree: &'a Tree) -> Option<&'a Exercise> {
        tree.exercises.iter().find(|exercise| self.of(exercise) != Standing::Solved)
    }

    /// The exercise of that name, else the next; none if all are solved.
    ///
    /// # Errors
    ///
    /// When no exercise, or several, are called so.
    pub(super) fn named_or_next<'a>(
        &self,
        tree: &'a Tree,
        name: Option<&str>,
    ) -> anyhow::Result<Option<&'a Exercise>> {
        match name {
            Some(name) => tree.named(name).map(Some),
            None => Ok(self.next(tree)),
        }
    }

    /// How many exercises are solved.
    pub(super) fn solved(&self, tree: &Tree) -> usize {
        tree.exercises.iter().filter(|exercise| self.of(exercise) == Standing::Solved).count()
    }

    /// Remembers that the answer with this fingerprint passed.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn remember_passed(
        tree: &Tree,
        exercise: &Exercise,
        fingerprint: String,
    ) -> anyhow::Result<()> {
        Self::change(tree, |records| {
            records.entry(exercise.name.clone()).or_default().passed = Some(fingerprint);
        })
    }

    /// Remembers the steps of the hint that are to be read now, and returns them: what `choose` makes of how many were
    /// read before. Whoever asks at the same time gets the next.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn remember_hints(
        tree: &Tree,
        exercise: &Exercise,
        choose: impl FnOnce(usize) -> Range<usize>,
    ) -> anyhow::Result<Range<usize>> {
        Self::change(tree, |records| {
            let record = records.entry(exercise.name.clone()).or_default();
            let chosen = choose(record.hints);
            record.hints = chosen.end;
            chosen
        })
    }

    /// Forgets an exercise.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(super) fn forget(tree: &Tree, exercise: &Exercise) -> anyhow::Result<()> {
        if !Self::load(tree)?.records.contains_key(&exercise.name) {
            return Ok(());
        }
        Self::change(tree, |records| drop(records.remove(&exercise.name)))
    }

    /// Changes what is remembered, and nobody else does so meanwhile.
    fn change<T>(
        tree: &Tree,
        change: impl FnOnce(&mut BTreeMap<String, Record>) -> T,
    ) -> anyhow::Result<T> {
        let folder = tree.root.join(FOLDER);
        fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
        // A file of its own: the other is replaced as a whole, and a lock with it.
        let path = folder.join("progress.lock");
        let told = || format!("{}", path.display());
        let lock = File::create(&path).with_context(told)?;
        match lock.lock() {
            // Some file systems have no locks. Then it is as likely as ever that nobody else is there.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            locked => locked.with_context(told)?,
        }
        let mut progress = Self::load(tree)?;
        let result = change(&mut progress.records);
        progress.store()?;
        Ok(result)
    }

    fn store(&self) -> anyhow::Result<()> {
        file::write(&self.path, |file| {
            serde_json::to_writer_pretty(&mut *file, &self.records)?;
            writeln!(file)
        })
        .with_context(|| format!("{}", self.path.display()))
    }
}

/// A fingerprint of what a check judges: the answer, and the check itself.
///
/// # Errors
///
/// When one of them cannot be read.
pub(super) fn fingerprint(exercise: &Exercise) -> anyhow::Result<String> {
    let mut hash = Sha256::new();
    for path in [exercise.file(), exercise.check()] {
        let text = tree::read(&path).with_context(|| format!("{}", path.display()))?;
        // The length keeps the two texts apart.
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
