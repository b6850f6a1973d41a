//! Settings of the whole process, made before any other thread exists.

use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(unix)]
use signal_hook::{consts::SIGXFSZ, flag};

use crate::allocator;

/// The environment variable that names the folder of Fashion-MNIST.
pub const DATA_FOLDER: &str = "COURSE_DATA_DIR";

/// The environment variable that names the web addresses that Fashion-MNIST is downloaded from.
pub const DATA_MIRRORS: &str = "COURSE_MIRRORS";

/// Whether this process has begun as a program of ours does.
static PREPARED: AtomicBool = AtomicBool::new(false);

/// Whether a file grew over the limit of the system (`ulimit -f`). To be told so by a signal would end the process without a
/// word; where the signal is taken, what was to be written gets an error instead, which names the file.
#[cfg(unix)]
static TOO_LARGE: AtomicBool = AtomicBool::new(false);

/// Whether this process is a program that may be ended from any of its threads: one that began with [`prepare`].
pub(super) fn may_be_ended() -> bool {
    PREPARED.load(Ordering::SeqCst)
}

/// Keeps freed memory in the process, makes candle's own elementwise operations run in the thread that calls them, takes
/// variables of ours that are set to nothing for ones that are not set, and a file that grows over the system's limit for an
/// error of that file. From then on the process may be ended where it could only hang ([`give_up`](super::give_up)).
///
/// Call this first thing in `main`. [`main`](super::main()) does; a program without it, such as a
/// benchmark, has to call this itself to measure what the binaries do.
///
/// candle's operations would otherwise use one process-wide pool of spinning threads behind a lock, whichever
/// device asks: a slice of one core would use all cores, and two slices would wait for each other.
#[expect(
    unsafe_code,
    reason = "candle offers no other way to set its number of threads, nor clap to leave out a variable"
)]
pub fn prepare() {
    const THREADS: &str = "CANDLE_NUM_THREADS";
    PREPARED.store(true, Ordering::SeqCst);
    #[cfg(unix)]
    {
        // Where it cannot be had, the signal ends the process, as it would have.
        let _ = flag::register(SIGXFSZ, &TOO_LARGE);
    }
    allocator::keep_freed_memory();
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: called first thing in `main`, before any other thread exists that could read or
        // write the environment.
        unsafe {
            std::env::set_var(THREADS, "1");
        }
    }
    for variable in [DATA_FOLDER, DATA_MIRRORS] {
        // To a shell, `VARIABLE= program` is how one does without it.
        if std::env::var_os(variable).is_some_and(|value| value.is_empty()) {
            // SAFETY: as above.
            unsafe {
                std::env::remove_var(variable);
            }
        }
    }
}
