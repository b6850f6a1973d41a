//! Where memory comes from: a heap for each thread, which keeps what is freed.
//!
//! Every step allocates the activations and gradients of the step before again. What becomes of them in
//! between is felt:
//!
//! - A block that goes back to the system costs twice: when it returns, the system clears it, page by
//!   page, and it is in no cache.
//! - A block that another device gets next lies in *that* core's cache, and its memory has to cross. Two
//!   slices of a CPU with one heap between them take each other's blocks in every operation, and gain far
//!   less over one slice than two separate processes do.
//!
//! mimalloc has a heap for each thread and keeps freed pages for a while; the system's allocator does one
//! thing or the other. It serves whatever links this crate, binaries, tests and benchmarks; so a program that
//! does cannot have another one. The binaries keep freed pages for good: see [`keep_freed_memory`].

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay` of mimalloc's header, which its bindings leave out: for how many milliseconds pages that hold
/// nothing are kept.
const PURGE_DELAY: mi_option_t = 15;
const FOR_EVER: c_long = -1;

/// Keeps pages that hold nothing for as long as the process lives, unless `MIMALLOC_PURGE_DELAY` says otherwise.
///
/// By default they go back to the system after a second. A step that takes about as long, as ResNet-18's does on a few
/// cores, then gets all of its memory anew from the system, which clears every page of it in one thread while the
/// others wait. The most memory that is held hardly grows, as a step needs what the one before it did.
#[expect(unsafe_code, reason = "the allocator's settings are calls into C")]
pub(crate) fn keep_freed_memory() {
    // SAFETY: it sets one number, of an option that mimalloc has; nobody else reads it yet, as this is called first
    // thing in `main`.
    unsafe { mi_option_set_default(PURGE_DELAY, FOR_EVER) }
}
