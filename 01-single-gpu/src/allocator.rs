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
//! thing or the other. It serves whatever links this crate: binaries, tests and benchmarks.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
