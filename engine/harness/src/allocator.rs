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

/// Keeps empty pages until the process ends, unless `MIMALLOC_PURGE_DELAY` sets another time. By default mimalloc
/// returns empty pages to the system after a second, about the time of a step of ResNet-18 on a few cores. Keeping the
/// pages hardly raises the peak memory, because all steps need the same amount.
#[expect(unsafe_code, reason = "the allocator's settings are calls into C")]
pub(crate) fn keep_freed_memory() {
    // SAFETY: this call sets the number of one option that mimalloc has. No other thread exists yet.
    unsafe { mi_option_set_default(PURGE_DELAY, FOR_EVER) }
}
