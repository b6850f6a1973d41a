//! What a step frees is there for the next. A process of its own: other tests would take it.

#![cfg(target_os = "linux")]

use std::hint::black_box;
use std::time::Duration;
use std::{fs, thread};

use harness::cli;

/// How often this thread had to wait for the system to give it a page.
fn page_faults() -> u64 {
    let said = fs::read_to_string("/proc/thread-self/stat").expect("Linux has this file");
    // The name, in brackets, may hold anything. `minflt` is the tenth field, the eighth behind it.
    let (_, behind_name) = said.rsplit_once(')').expect("the name is in brackets");
    let faults = behind_name.split_whitespace().nth(7).expect("there are more fields");
    faults.parse().expect("it is a number")
}

/// What a step does: takes memory, writes to it, and gives it back. Returns its page faults.
fn step() -> u64 {
    let before = page_faults();
    for megabytes in [64, 3, 17] {
        black_box(vec![1u8; megabytes << 20]);
    }
    page_faults() - before
}

#[test]
fn a_later_step_gets_the_memory_of_the_one_before() {
    cli::prepare();
    step();
    // Longer than mimalloc would keep it.
    thread::sleep(Duration::from_millis(1200));
    let faults = [step(), step()];
    // Of 84 MiB, however large the pages are.
    assert!(faults.iter().sum::<u64>() < 16, "{faults:?} page faults");
}
