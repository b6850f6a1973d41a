//! The memory allocator: mimalloc, with one heap per thread that keeps freed memory.
//!
//! Every step allocates memory for activations and gradients, as much as the step before has freed. Two ways to reuse
//! this memory are slow:
//!
//! - The allocator returns a block to the system. When the block comes back, the system clears each of its pages, and
//!   no cache holds it.
//! - The allocator gives the block to another device. Then the block is in the cache of the wrong core. Two slices of a
//!   CPU that share one heap exchange blocks in every operation: they are much slower than two separate processes.
//!
//! mimalloc has one heap per thread and keeps freed pages for a while. The system's allocator lacks one or the other.
//! Every program that links this crate uses mimalloc, and cannot have another allocator. The binaries keep freed pages
//! until they end: see [`keep_freed_memory`].

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay` of mimalloc's header, which its bindings leave out: the time in milliseconds for which
/// mimalloc keeps empty pages.
const PURGE_DELAY: mi_option_t = 15;
const FOR_EVER: c_long = -1;

/// Keeps empty pages until the process ends, unless `MIMALLOC_PURGE_DELAY` sets another time.
///
/// By default mimalloc returns empty pages to the system after a second. A step of ResNet-18 takes about that long on a
/// few cores. The next step would then get all memory from the system, which clears every page in one thread while the
/// other threads wait. Keeping the pages hardly raises the peak memory, because all steps need the same amount.
#[expect(unsafe_code, reason = "the allocator's settings are calls into C")]
pub(crate) fn keep_freed_memory() {
    // SAFETY: this call sets the number of one option that mimalloc has. `main` calls this function first, so no other
    // thread reads the option yet.
    unsafe { mi_option_set_default(PURGE_DELAY, FOR_EVER) }
}
