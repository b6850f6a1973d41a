//! The folder of a run's checkpoints.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use harness::lock::has_no_locks;
use harness::records::TrainerState;
use harness::report::Report;
use harness::report::file::PARTIAL;
use harness::report::trace::COMPUTE;
use itertools::Itertools as _;
use tracing::info_span;

use crate::file::Checkpoint;
use crate::{Checkpoints, Error, Resume, file};

/// The file whose lock a run holds. The system releases the lock when the process ends, also after a crash. The file stays.
pub(crate) const LOCK: &str = "lock";

pub(crate) const PREFIX: &str = "step-";
pub(crate) const SUFFIX: &str = ".safetensors";

/// A locked folder: only this run writes to it until the folder is dropped.
#[derive(Debug)]
pub struct Folder {
    settings: Checkpoints,
    batches_per_epoch: usize,
    epochs: usize,
    _lock: File,
}

impl Folder {
    /// Makes the folder if it is missing, locks it, and removes files that a killed run left half-written. Fails with
    /// [`Error::Refused`] when another run has the lock, when a run that resumes finds no checkpoint, or one that begins finds one.
    pub fn open(
        settings: Checkpoints,
        batches_per_epoch: usize,
        epochs: usize,
        report: &Report<'_>,
    ) -> Result<Self, Error> {
        let path = &settings.folder;
        fs::create_dir_all(path).map_err(Error::io("make the folder", path))?;
        let lock_path = path.join(LOCK);
        let lock = File::options().write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock.map_err(Error::io("open", &lock_path))?;
        let place = path.display();
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Refused(format!(
                    "another run keeps its checkpoints in {place}: choose another folder, or end that run"
                )));
            }
            Err(TryLockError::Error(reason)) if has_no_locks(&reason) => report.note(format_args!(
                "the file system of {place} has no locks: see to it that no other run writes there"
            )),
            Err(TryLockError::Error(reason)) => return Err(Error::io("lock", &lock_path)(reason)),
        }
        for (name, path) in entries(path)? {
            if name.starts_with(PREFIX) && name.ends_with(PARTIAL) {
                remove(&path)?;
            }
        }
        check(path, settings.resume)?;
        Ok(Self { settings, batches_per_epoch, epochs, _lock: lock })
    }

    /// Writes the checkpoint that is [due](Checkpoints::due). Surplus ones are removed before and after. So a whole one is there at any
    /// time, and the folder needs room for one more than the number to keep. Fails when a file cannot be written or removed.
    pub fn write(
        &self,
        path: &Path,
        state: &TrainerState,
        tensors: &[(String, Tensor)],
    ) -> Result<(), Error> {
        let Checkpoints { folder, keep, configuration, .. } = &self.settings;
        let _span = info_span!(target: COMPUTE, "checkpoint").entered();
        let keep = (*keep).max(1);
        let remove_surplus = || {
            let mut surplus = checkpoints(folder)?.into_iter().rev().skip(keep);
            surplus.try_for_each(|(_, path)| remove(&path))
        };
        remove_surplus()?;
        file::write(path, state, configuration, tensors).map_err(|reason| {
            let full = matches!(reason.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
            let room = format!("; --keep {keep} takes the room of {} checkpoints", keep + 1);
            let room = if full { &*room } else { "" };
            Error::Unusable(format!("cannot write {}: {reason}{room}", path.display()))
        })?;
        remove_surplus()
    }

    /// Finds the checkpoint to resume from. Returns the state of the training loop, and what `take` makes of the file and its tensors,
    /// which are in CPU memory. Reports the checkpoint, and each unusable one, which gets another name. Fails when no checkpoint can be
    /// used, when it does not fit this run, or when the newest is unusable and the run asked for it.
    pub fn find<T>(
        &self,
        take: impl Fn(&Path, BTreeMap<String, Tensor>) -> Result<T, Error>,
        report: &Report<'_>,
    ) -> Result<(TrainerState, T), Error> {
        let Self { settings, batches_per_epoch, .. } = self;
        let mut unusable: Vec<(PathBuf, Error)> = Vec::new();
        for (step, path) in checkpoints(&settings.folder)?.into_iter().rev() {
            let read = self.read(step, &path);
            let error = match read.and_then(|(state, _, it)| Ok((state, take(&path, it)?))) {
                Ok((state, taken)) => {
                    for (path, error) in unusable {
                        let aside = path.with_added_extension("broken");
                        fs::rename(&path, &aside).map_err(Error::io("set aside", &path))?;
                        report.note(format_args!("{error}; it is now {}", aside.display()));
                    }
                    report.note(format_args!(
                        "resuming after step {step} (batch {} of {batches_per_epoch} in epoch {}) from {}",
                        state.batches,
                        state.epoch(),
                        path.display()
                    ));
                    return Ok((state, taken));
                }
                Err(error @ Error::Unusable(_)) => error,
                Err(error) => return Err(error),
            };
            if settings.resume != Some(Resume::LatestValid) {
                let other = "--resume latest-valid takes the newest checkpoint that can be used";
                return Err(Error::Refused(format!("{error}; {other}")));
            }
            unusable.push((path, error));
        }
        let Some((_, oldest)) = unusable.last() else { return Err(nothing_in(&settings.folder)) };
        let (folder, count) = (settings.folder.display(), unusable.len());
        let none = format!("none of the {count} checkpoints in {folder} can be used");
        Err(Error::Refused(format!("{none}; the oldest: {oldest}")))
    }

    /// Reads the checkpoint after a step, and compares it with this run.
    fn read(&self, step: usize, path: &Path) -> Result<Checkpoint, Error> {
        let checkpoint = file::read(path)?;
        let (state, configuration, _) = &checkpoint;
        let Self { settings, batches_per_epoch, epochs, .. } = self;
        let (epoch, batches) = (state.epoch(), state.batches);
        let ended =
            format!("is in epoch {epoch}, this run ends after {epochs}: ask for more epochs");
        let difference = settings.configuration.difference(configuration, settings.scale);
        if let Some(difference) = difference.or((epoch > *epochs).then_some(ended)) {
            return Err(Error::Refused(format!("checkpoint {} {difference}", path.display())));
        }
        if step != state.steps(*batches_per_epoch) || batches > *batches_per_epoch {
            let of = format!("batch {batches} of {batches_per_epoch} in epoch {epoch}");
            return Err(Error::damaged(path, format!("step {step} is not that of {of}")));
        }
        Ok(checkpoint)
    }
}

/// Checks that the folder has a checkpoint if the run resumes, and none if the run begins: a folder belongs to one run.
pub(crate) fn check(folder: &Path, resume: Option<Resume>) -> Result<(), Error> {
    match (checkpoints(folder)?.last(), resume) {
        (None, Some(_)) => Err(nothing_in(folder)),
        (Some((step, _)), None) => Err(Error::Refused(format!(
            "{}: it has checkpoints up to step {step}: resume from them with --resume, or choose another folder",
            folder.display()
        ))),
        _ => Ok(()),
    }
}

fn nothing_in(folder: &Path) -> Error {
    Error::Refused(format!("{}: there is no checkpoint to resume from", folder.display()))
}

/// The steps and files of the checkpoints in a folder, oldest first.
pub(crate) fn checkpoints(folder: &Path) -> Result<Vec<(usize, PathBuf)>, Error> {
    let step = |name: &str| {
        let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let named = entries(folder)?.into_iter();
    Ok(named.filter_map(|(name, path)| Some((step(&name)?, path))).sorted().collect())
}

/// The names and paths of the files in a folder, which need not exist.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let entry = |entry: io::Result<fs::DirEntry>| {
        entry.map(|it| (it.file_name().to_string_lossy().into_owned(), it.path()))
    };
    match fs::read_dir(folder).and_then(|entries| entries.map(entry).collect()) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries.map_err(Error::io("read the folder", folder)),
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use harness::records::EpochRecord;

    use super::*;
    use crate::Configuration;

    #[test]
    fn numbers_that_contradict_each_other_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let settings = Checkpoints {
            folder: place.path().join("run"),
            every: 1,
            keep: 1,
            resume: None,
            scale: 1,
            configuration: Configuration::default(),
        };
        let folder = |batches_per_epoch, epochs| {
            let report = Report::silent();
            Folder::open(settings.clone(), batches_per_epoch, epochs, &report).unwrap()
        };
        let path = place.path().join("checkpoint");
        let state = |epochs, batches| {
            let records = vec![EpochRecord::default(); epochs];
            TrainerState { records, batches, ..TrainerState::default() }
        };
        let read = |folder: Folder, step, state| {
            file::write(&path, &state, &Configuration::default(), &[]).unwrap();
            folder.read(step, &path).map(|(state, ..)| state).map_err(|error| error.to_string())
        };
        assert_eq!(read(folder(5, 2), 7, state(1, 2)), Ok(state(1, 2)));
        assert_eq!(read(folder(5, 2), 10, state(1, 5)), Ok(state(1, 5)));
        let error = read(folder(5, 2), 11, state(1, 6)).unwrap_err();
        assert!(
            error.ends_with("is damaged: step 11 is not that of batch 6 of 5 in epoch 2"),
            "{error}"
        );
        for (batches_per_epoch, step, state) in
            [(6, 7, state(1, 2)), (5, 8, state(1, 2)), (5, 7, state(2, 2)), (5, 7, state(0, 2))]
        {
            let error = read(folder(batches_per_epoch, 9), step, state).unwrap_err();
            assert!(error.contains(" is damaged: step "), "{error}");
        }
        let error = read(folder(5, 1), 7, state(1, 2)).unwrap_err();
        assert!(
            error.ends_with("is in epoch 2, this run ends after 1: ask for more epochs"),
            "{error}"
        );
    }
}
