//! The memory allocator: mimalloc, with one heap per thread that keeps freed memory.
//!
//! Every step allocates memory for activations and gradients, as much as the step before has freed. An allocator that
//! returns a block to the system is slow, because the system clears each page when the block comes back. An allocator
//! that gives the block to another device is slow, because the block is in the cache of the wrong core. mimalloc has
//! one heap per thread. Every program that links this crate uses mimalloc.

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay` of mimalloc's header: the time in milliseconds for which it keeps empty pages.
const PURGE_DELAY: mi_option_t = 15;
const FOR_EVER: c_long = -1;

/// Makes a failed allocation end the process. Keeps empty pages until the process ends, unless `MIMALLOC_PURGE_DELAY` sets another time. By default mimalloc
/// returns empty pages to the system after a second, about the time of a step of ResNet-18 on a few cores. Keeping the
/// pages hardly raises the peak memory, because all steps need the same amount.
#[expect(unsafe_code, reason = "the allocator's settings are calls into C")]
pub(crate) fn set_up() {
    // SAFETY: the first call sets the number of one option that mimalloc has. The second call sets a function that lives
    // as long as the program and does not use its argument. No other thread exists yet.
    unsafe {
        mi_option_set_default(PURGE_DELAY, FOR_EVER);
        #[cfg(unix)]
        libmimalloc_sys::mi_register_error(Some(failure::end), std::ptr::null_mut());
    }
}

#[cfg(unix)]
mod failure {
    use std::ffi::{c_int, c_void};
    use std::io::{self, Write as _};

    use signal_hook::low_level::exit;

    /// C's `ENOMEM`, which mimalloc reports when the system has no memory for an allocation.
    const NO_MEMORY: c_int = 12;

    /// Ends the process in one line when the system has no memory. Without this function Rust prints two lines or a
    /// backtrace, and aborts. The function allocates nothing, and runs no destructor.
    pub(super) extern "C" fn end(error: c_int, _: *mut c_void) {
        if error == NO_MEMORY {
            let _ = io::stderr().write_all(
                b"error: this machine has no more free memory: take a smaller batch or network, or end other programs\n",
            );
            exit(1);
        }
    }
}
