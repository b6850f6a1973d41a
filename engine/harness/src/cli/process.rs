//! Settings of the whole process. Most of them are made before another thread exists.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(unix)]
use signal_hook::{consts::SIGXFSZ, flag};

use crate::allocator;
use crate::launcher::{self, MEETING};
use crate::machine::DATA_FOLDER;

/// The environment variable with the web addresses of Fashion-MNIST.
pub const DATA_MIRRORS: &str = "COURSE_MIRRORS";

/// Whether this process has called [`prepare`].
static PREPARED: AtomicBool = AtomicBool::new(false);

/// Whether a file has exceeded `ulimit -f`. With a handler for the signal, the write returns an error and the process goes on.
#[cfg(unix)]
static TOO_LARGE: AtomicBool = AtomicBool::new(false);

/// Whether any thread may end this process: it has called [`prepare`].
pub(super) fn may_be_ended() -> bool {
    PREPARED.load(Ordering::SeqCst)
}

/// Prepares the process. `main` calls this function before anything else.
///
/// - The allocator keeps freed memory. A failed allocation ends the process in one line, with exit code 1.
/// - candle's elementwise operations run in the thread that calls them, and not in one pool of all slices.
/// - Empty environment variables of the course, of candle and of NCCL count as unset.
/// - NCCL gets its variables if a launcher such as `torchrun` started this process.
/// - A file that exceeds the system's limit causes an error with the name of the file.
/// - [`give_up`](super::give_up) ends the process.
///
/// A process that has several threads already, or whose threads cannot be counted, keeps its environment and the
/// allocator's time for empty pages: another thread may read them.
#[expect(unsafe_code, reason = "candle, NCCL, clap and the allocator offer no other way")]
pub fn prepare() {
    PREPARED.store(true, Ordering::SeqCst);
    #[cfg(unix)]
    {
        // Without the handler the signal ends the process, as by default.
        let _ = flag::register(SIGXFSZ, &TOO_LARGE);
        allocator::end_without_memory();
    }
    if num_threads::is_single_threaded() != Some(true) {
        return;
    }
    // SAFETY: this is the only thread, so no other thread frees memory, or could begin to.
    unsafe { allocator::keep_pages() }
    // An error in the launcher's variables is reported when the processes connect.
    let place = launcher::place().ok().flatten();
    for (variable, default) in [
        ("CANDLE_NUM_THREADS", Some("1")),
        (MEETING, place.as_ref().map(|place| &*place.meeting)),
        // With 0 ranks connect when they join, which has a time limit here, and not in the first collective.
        ("NCCL_RUNTIME_CONNECT", place.as_ref().map(|_| "0")),
        (DATA_FOLDER, None),
        (DATA_MIRRORS, None),
    ] {
        // A shell user writes `VARIABLE= program` to run a program without the variable.
        if env::var_os(variable).is_some_and(|value| !value.is_empty()) {
            continue;
        }
        // SAFETY: no other thread exists, as above, so none reads or writes the environment.
        unsafe {
            match default {
                Some(value) => env::set_var(variable, value),
                None => env::remove_var(variable),
            }
        }
    }
}
