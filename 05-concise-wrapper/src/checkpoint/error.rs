//! What can be wrong with checkpoints and their folder.

use std::io;
use std::path::PathBuf;

/// Why a checkpoint was not written, or not used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("cannot {task} {}: {reason}", path.display())]
    Io {
        /// What was tried.
        task: &'static str,
        /// With what.
        path: PathBuf,
        /// Why; not as a source, which would be told twice.
        reason: io::Error,
    },
    /// The tensors could not be put into a file.
    #[error("cannot write {}: {reason}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Another run holds the lock.
    #[error("another run keeps its checkpoints in {}: choose another folder, or end that run", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A run that begins anew would mix its checkpoints with those of another.
    #[error(
        "{} has checkpoints up to step {step}: go on from them with --resume, or choose another folder",
        folder.display()
    )]
    NotEmpty {
        /// The folder.
        folder: PathBuf,
        /// The newest one's step.
        step: usize,
    },
    /// A model of which every rank holds a part.
    #[error(
        "a model in parts has no checkpoints: each rank would write its own part, and none the whole"
    )]
    Parts,
    /// There is nothing to go on from.
    #[error("there is no checkpoint in {} to go on from", folder.display())]
    None {
        /// The folder.
        folder: PathBuf,
    },
    /// All checkpoints are damaged.
    #[error("all {count} checkpoints in {} are damaged; the oldest: {oldest}", folder.display())]
    NoneValid {
        /// The folder.
        folder: PathBuf,
        /// How many there are.
        count: usize,
        /// What is wrong with the oldest.
        oldest: Box<Error>,
    },
    /// A file is not what was written, or never was a checkpoint.
    #[error("checkpoint {} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How that shows.
        reason: String,
    },
    /// The newest checkpoint is damaged.
    #[error("{0}; --resume latest-valid goes on from the newest one that is not")]
    NewestDamaged(Box<Error>),
    /// It was written by another version of this program.
    #[error("checkpoint {} is of format {found}, this program reads format {expected}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// It is of a run with other settings.
    #[error("checkpoint {} is of {what} {there}, this run's is {here}", path.display())]
    OtherRun {
        /// The file.
        path: PathBuf,
        /// The first setting that differs.
        what: String,
        /// The checkpoint's.
        there: String,
        /// This run's.
        here: String,
    },
    /// It is of another network.
    #[error("checkpoint {} has tensor {name} {there}, this run's network has {here}", path.display())]
    OtherNetwork {
        /// The file.
        path: PathBuf,
        /// The first tensor that differs.
        name: String,
        /// The checkpoint's type and shape, or `none`.
        there: String,
        /// The network's, or `none`.
        here: String,
    },
    /// It is of a time when this run is over.
    #[error(
        "checkpoint {} is in epoch {epoch}, this run ends after {epochs}: ask for more epochs",
        path.display()
    )]
    Beyond {
        /// The file.
        path: PathBuf,
        /// The epoch that is under way there.
        epoch: usize,
        /// This run's epochs.
        epochs: usize,
    },
}

impl Error {
    /// Whether the file itself is at fault, so that an older one may serve.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    /// Puts a path and a task to a system's error.
    pub(super) fn io(
        task: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |reason| Self::Io { task, path, reason }
    }
}
