//! What is trained, and the checkpoints that it leaves.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::job::Started;

/// A narrow network on few images: seven steps an epoch, the last of them smaller.
pub(crate) const SMALL: [&str; 8] = [
    "--device=cpu",
    "--threads-per-device=1",
    "--data=synthetic",
    "--train-size=200",
    "--test-size=20",
    "--batch-size=32",
    "--momentum=0.9",
    "--width=4",
];

/// The steps of an epoch.
pub(crate) const STEPS: usize = 7;

/// Waits until there is a checkpoint of this step, or a later one.
pub(crate) fn reaches(job: &mut Started, folder: &Path, step: usize) {
    job.until(|| newest(folder).is_some_and(|newest| newest >= step));
}

/// The checkpoints of a folder, oldest first: of which step, and where.
pub(crate) fn checkpoints(folder: &Path) -> Vec<(usize, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |path: PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str)?;
        let step = name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok()?;
        Some((step, path))
    };
    let mut found: Vec<_> = entries.filter_map(|entry| of(entry.path())).collect();
    found.sort();
    found
}

fn newest(folder: &Path) -> Option<usize> {
    checkpoints(folder).pop().map(|(step, _)| step)
}
