//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a lock protects, also if a thread panicked while it held it.
///
/// That is a rank that has failed, or a test, and others find what it shared with them as it was: nothing that the course
/// has behind a lock is ever half changed.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
