//! The folder of a run's checkpoints: their names, one run at a time, and the last few.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use harness::report::file::PARTIAL;

use super::Error;

/// The file that says, by its lock, that a run uses the folder. It stays; the system takes the lock away
/// when the process ends, however it does.
pub(super) const LOCK: &str = "lock";

const PREFIX: &str = "step-";
const SUFFIX: &str = ".safetensors";

/// Put behind the name of a checkpoint that is damaged.
const BROKEN: &str = ".broken";

/// A folder that this run alone writes to, as long as this is there.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes the folder if it is missing, locks it, and removes what a run that was killed left half
    /// written.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`], or what the system says.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(Error::io("make the folder", path))?;
        let lock_path = path.join(LOCK);
        let lock = File::options().write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock.map_err(Error::io("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { folder: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", lock_path)(source)),
        }
        for (name, path) in entries(path)? {
            if name.starts_with(PREFIX) && name.ends_with(PARTIAL) {
                remove(&path)?;
            }
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that there is no checkpoint yet: those of a run that begins anew would mix with them.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`].
    pub(super) fn check_empty(&self) -> Result<(), Error> {
        match self.checkpoints()?.pop() {
            Some((step, _)) => Err(Error::NotEmpty { folder: self.path.clone(), step }),
            None => Ok(()),
        }
    }

    /// The file for the checkpoint after a step.
    pub(super) fn file(&self, step: usize) -> PathBuf {
        self.path.join(format!("{PREFIX}{step:08}{SUFFIX}"))
    }

    /// All checkpoints, oldest first.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub(super) fn checkpoints(&self) -> Result<Vec<(usize, PathBuf)>, Error> {
        checkpoints(&self.path)
    }

    /// Removes all but the newest `keep`.
    ///
    /// # Errors
    ///
    /// When one cannot be removed.
    pub(super) fn prune(&self, keep: usize) -> Result<(), Error> {
        let checkpoints = self.checkpoints()?;
        let old = checkpoints.len().saturating_sub(keep.max(1));
        checkpoints[..old].iter().try_for_each(|(_, path)| remove(path))
    }

    /// Gives a damaged checkpoint a name under which it is none; returns that.
    ///
    /// # Errors
    ///
    /// When it cannot be renamed.
    pub(super) fn set_aside(&self, path: &Path) -> Result<PathBuf, Error> {
        let mut name = path.as_os_str().to_owned();
        name.push(BROKEN);
        fs::rename(path, &name).map_err(Error::io("set aside", path))?;
        Ok(name.into())
    }
}

/// Steps and files of the checkpoints in a folder, oldest first.
///
/// # Errors
///
/// When the folder cannot be read.
pub(super) fn checkpoints(folder: &Path) -> Result<Vec<(usize, PathBuf)>, Error> {
    let step = |name: &str| {
        let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let mut found: Vec<_> = entries(folder)?
        .into_iter()
        .filter_map(|(name, path)| Some((step(&name)?, path)))
        .collect();
    found.sort();
    Ok(found)
}

/// Names and paths of what is in a folder. A name that is no text is none of ours.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let list = || {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                found.push((name, entry.path()));
            }
        }
        Ok(found)
    };
    list().map_err(Error::io("read the folder", folder))
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
