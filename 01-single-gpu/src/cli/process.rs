//! Two settings of the whole process, made before any other thread exists.

/// Settings that a training process should start with. Call this first thing in `main`.
///
/// [`main`](super::main()) does. A program without it, such as a benchmark, has to call this itself to
/// measure what the binaries do.
pub fn prepare() {
    keep_candle_on_its_device();
    keep_freed_memory();
}

/// Makes candle's own elementwise operations run in the thread that calls them.
///
/// They would otherwise use one process-wide pool of spinning threads behind a lock, whichever device
/// asks: a slice of one core would use all cores, and two slices would wait for each other.
#[expect(unsafe_code, reason = "candle offers no other way to set its number of threads")]
fn keep_candle_on_its_device() {
    const VARIABLE: &str = "CANDLE_NUM_THREADS";
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: called first thing in `main`, before any other thread exists that could read or
        // write the environment.
        unsafe {
            std::env::set_var(VARIABLE, "1");
        }
    }
}

/// Makes the allocator keep large blocks that were freed.
///
/// Every step allocates the same activations and gradients again. glibc maps large blocks one by one and
/// hands them back when they are freed, and the system clears each page anew at its next first use: a
/// third of a training step. So all blocks come from the heap, and the heap never shrinks. glibc also
/// gives each thread a heap of its own, too small for our blocks, so that they come and go with whole
/// heaps; one heap for all threads keeps them. (Small blocks have a cache per thread either way.)
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the allocator's settings are a C function")]
fn keep_freed_memory() {
    // SAFETY: all three set a number inside the allocator; no other thread exists that could be allocating.
    // A refused value leaves the default, which is slower and nothing else.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        // A threshold would not do: glibc takes none above 32 MiB, and ResNet-18 alone has 45.
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_freed_memory() {}
