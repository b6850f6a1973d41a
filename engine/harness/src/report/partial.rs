//! Files that are not whole yet, and go by another name until they are.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use crate::lock::locked;

/// How the names of files end that are not whole yet.
pub const PARTIAL: &str = ".partial";

/// Those that this process has begun.
static BEGUN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The place of a file until it is whole. What is still there when this is dropped is removed.
#[derive(Debug)]
pub(super) struct Partial(PathBuf);

impl Partial {
    /// Beside the final one, and this process's own.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mut name: OsString = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(format!(".{}{PARTIAL}", std::process::id()));
        let path = path.with_file_name(name);
        begun().push(path.clone());
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Renamed, most often: that nothing is there to remove is no error.
        let _ = fs::remove_file(&self.0);
        begun().retain(|path| *path != self.0);
    }
}

/// Removes all files that this process has begun and that are not whole. Whoever begins another one from now on waits for
/// ever: the process is about to end.
pub(crate) fn remove_all() {
    let begun = begun();
    for path in &*begun {
        let _ = fs::remove_file(path);
    }
    std::mem::forget(begun);
}

fn begun() -> MutexGuard<'static, Vec<PathBuf>> {
    locked(&BEGUN)
}
