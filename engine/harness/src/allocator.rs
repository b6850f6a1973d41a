//! The memory allocator: mimalloc, with one heap per thread that keeps freed memory. Every program that links this crate uses it.
//!
//! Every step allocates as much memory as the step before has freed. An allocator that returns a block to the system is slow,
//! because the system clears each page when the block comes back. An allocator that gives the block to another device is slow,
//! because the block is in the cache of the wrong core.

use std::ffi::c_long;
use std::io::{self, Write as _};
use std::sync::OnceLock;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay` of mimalloc's header: the time in milliseconds for which it keeps empty pages.
const PURGE_DELAY: mi_option_t = 15;
const FOR_EVER: c_long = -1;

/// Keeps empty pages until the process ends, unless `MIMALLOC_PURGE_DELAY` sets another time. By default mimalloc returns empty
/// pages after a second, about the time of a step of ResNet-18 on a few cores. The peak hardly rises: all steps need the same.
///
/// # Safety
///
/// The process has no other thread. Every thread reads the option when it frees memory, without a lock.
#[expect(unsafe_code, reason = "the allocator's settings are calls into C")]
pub(crate) unsafe fn keep_pages() {
    // SAFETY: the option exists, and the caller has the only thread.
    unsafe { mi_option_set_default(PURGE_DELAY, FOR_EVER) }
}

/// Makes a failed allocation end the process, with one line and exit code 1. Without this function Rust prints two lines or a
/// backtrace, and aborts.
#[expect(unsafe_code, reason = "the allocator's settings are calls into C")]
pub(crate) fn end_without_memory() {
    /// C's `ENOMEM`, which mimalloc reports when the system has no memory for an allocation.
    const NO_MEMORY: std::ffi::c_int = 12;

    /// The message has the limit on this process. It is written early, because a failed allocation leaves no memory for it.
    static MESSAGE: OnceLock<String> = OnceLock::new();

    /// Allocates nothing, and runs no destructor.
    extern "C" fn end(error: std::ffi::c_int, _: *mut std::ffi::c_void) {
        if error == NO_MEMORY {
            let message = MESSAGE.get().map_or(&[][..], |message| message.as_bytes());
            let _ = io::stderr().write_all(message);
            signal_hook::low_level::exit(1);
        }
    }

    MESSAGE.get_or_init(|| {
        let total = crate::machine::memory().map(|memory| format!(" of {}", memory.total));
        let total = total.unwrap_or_default();
        format!("error: no memory is left{total}: take a smaller batch or network, or end other programs\n")
    });
    // SAFETY: other threads may exist, as mimalloc documents. The function lives as long as the program, and does not use
    // its argument.
    unsafe { libmimalloc_sys::mi_register_error(Some(end), std::ptr::null_mut()) }
}
