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
//! thing or the other. It serves whatever links this crate: binaries, tests and benchmarks. The binaries keep
//! freed pages for good: see [`keep_freed_memory`].

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
/// others wait. As every step needs as much as the one before, the most memory that is held stays the same.
#[expect(unsafe_code, reason = "the allocator's settings are calls into C")]
pub(crate) fn keep_freed_memory() {
    // SAFETY: it sets one number, of an option that mimalloc has.
    unsafe { mi_option_set_default(PURGE_DELAY, FOR_EVER) }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::hint::black_box;
    use std::time::Duration;
    use std::{fs, thread};

    use super::*;

    /// How often this thread had to wait for the system to give it a page.
    fn page_faults() -> u64 {
        let said = fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The name, in brackets, may hold anything. `minflt` is the tenth field, the eighth behind it.
        let behind_name = said.rsplit_once(')').unwrap().1;
        behind_name.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    /// What a step does: takes memory, writes to it, and gives it back.
    fn step() {
        for megabytes in [64, 3, 17] {
            black_box(vec![1u8; megabytes << 20]);
        }
    }

    #[test]
    fn a_later_step_gets_the_memory_of_the_one_before() {
        keep_freed_memory();
        let faults_of_a_step = || {
            let before = page_faults();
            step();
            page_faults() - before
        };
        faults_of_a_step();
        // Longer than mimalloc would keep it.
        thread::sleep(Duration::from_millis(1200));
        let faults = [faults_of_a_step(), faults_of_a_step()];
        // Of 84 MiB, however large the pages are.
        assert!(faults.iter().sum::<u64>() < 16, "{faults:?} page faults");
    }
}
