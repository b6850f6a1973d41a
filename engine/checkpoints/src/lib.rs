//! Checkpoints: a run that ended early resumes after its last step, with the same bits.
//!
//! A checkpoint is one safetensors file. It holds everything that the next step depends on: the tensors (parameters, buffers, the
//! state of the optimizer), the state of the training loop with the records so far, and the settings of the run. No random
//! generator is stored: the order of an epoch depends on the seed and the epoch alone.

mod arguments;
mod file;
mod folder;

use std::fmt::Display;
use std::io;
use std::path::Path;

pub use arguments::{Checkpoints, Resume};
pub use file::{Configuration, read_finite, take};
pub use folder::Folder;

/// The largest number of epochs of a run with checkpoints. The record of an epoch takes at most 320 bytes of JSON, and twice as
/// many inside another JSON text. 16 MiB are far below safetensors' limit of 100 MB for the header of a file.
const MOST_EPOCHS: usize = (16 << 20) / 2 / 320;

/// Why a checkpoint was not written or not used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub enum Error {
    /// The operating system refused a task, or a file does not have the content that was written. The text names the path and
    /// the reason. An older checkpoint may be intact.
    Unusable(String),
    /// The folder or the checkpoint does not suit this run. The text names the path and the first difference.
    Refused(String),
    /// The state of a run is infinite or NaN, and was not written. The text names the first tensor and the last checkpoint.
    NotFinite(String),
}

impl Error {
    /// Adds a task, such as `write`, and a path to an error of the system.
    pub fn io(task: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |reason| Self::Unusable(format!("cannot {task} {}: {reason}", path.display()))
    }

    /// Says that a file does not have the content that was written.
    pub fn damaged(path: &Path, reason: impl Display) -> Self {
        Self::Unusable(format!("checkpoint {} is damaged: {reason}", path.display()))
    }
}
