//! Locks: of threads, which survive a panic, and of files, which some file systems do not have.

use std::io::{self, ErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, even if a thread panicked while it held the lock: no code of the course panics in the middle of a change.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an error of locking a file says that the file system has no locks. NFS and FUSE can be mounted without.
pub fn has_no_locks(error: &io::Error) -> bool {
    /// "No locks available" has no [`ErrorKind`].
    const ENOLCK: i32 = if cfg!(target_vendor = "apple") { 77 } else { 37 };
    // The kind of ENOSYS and EOPNOTSUPP.
    error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(ENOLCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_without_locks_is_told_from_one_that_fails() {
        let (enolck, enosys, eopnotsupp) = (37, 38, 95);
        for code in [enolck, enosys, eopnotsupp] {
            assert!(has_no_locks(&io::Error::from_raw_os_error(code)), "{code}");
        }
        let (eio, eagain, eintr) = (5, 11, 4);
        for code in [eio, eagain, eintr] {
            assert!(!has_no_locks(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }
}
