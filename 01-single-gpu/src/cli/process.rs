//! Settings of the whole process, made before any other thread exists.

use crate::allocator;

/// Keeps freed memory in the process, and makes candle's own elementwise operations run in the thread that calls them.
///
/// Call this first thing in `main`. [`main`](super::main()) does; a program without it, such as a
/// benchmark, has to call this itself to measure what the binaries do.
///
/// candle's operations would otherwise use one process-wide pool of spinning threads behind a lock, whichever
/// device asks: a slice of one core would use all cores, and two slices would wait for each other.
#[expect(unsafe_code, reason = "candle offers no other way to set its number of threads")]
pub fn prepare() {
    const VARIABLE: &str = "CANDLE_NUM_THREADS";
    allocator::keep_freed_memory();
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: called first thing in `main`, before any other thread exists that could read or
        // write the environment.
        unsafe {
            std::env::set_var(VARIABLE, "1");
        }
    }
}
