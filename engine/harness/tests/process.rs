//! What `prepare` does to a process. Each case is a child of its own, which begins with one thread: the test harness of Rust
//! would start a second one.

use std::env;
use std::ffi::c_long;
use std::hint::black_box;
use std::process::{Command, Output};
use std::time::Duration;
use std::{fs, thread};

use harness::cli::{self, DATA_FOLDER};
use harness::machine;
use libmimalloc_sys::mi_option_get;

/// A name, a script of the shell that starts the child, the child's work, and the check of the child's end.
type Case = (&'static str, &'static str, fn(), fn(&Output));

const CASES: [Case; 3] = [
    ("two_threads_keep_their_settings", "exec \"$@\"", two_threads_keep_their_settings, succeeds),
    ("a_later_step_gets_the_memory_of_the_one_before", "exec \"$@\"", a_later_step, succeeds),
    (
        "a_failed_allocation_ends_in_one_line_with_the_limit",
        "ulimit -v 2000000 && exec \"$@\"",
        a_failed_allocation,
        says_the_limit,
    ),
];

fn main() {
    const CHILD: &str = "PREPARED_CHILD";
    if !cfg!(target_os = "linux") {
        return;
    }
    if let Ok(child) = env::var(CHILD) {
        let case = CASES.iter().find(|(name, ..)| *name == child);
        return case.expect("a case has this name").2();
    }
    let this = env::current_exe().expect("this program has a path");
    for (name, script, _, check) in CASES {
        let mut child = Command::new("sh");
        child.args(["-c", script, "sh"]).arg(&this).env(CHILD, name).env(DATA_FOLDER, "");
        check(&child.output().expect("this program can be started"));
        println!("test {name} ... ok");
    }
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

fn says_the_limit(output: &Output) {
    let error = "error: no memory is left of 2.0 GB (ulimit -v): take a smaller batch or network, or end other programs\n";
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(1), error));
}

/// mimalloc's option `purge_delay`.
#[expect(unsafe_code, reason = "the allocator's settings are calls into C")]
fn purge_delay() -> c_long {
    // SAFETY: the option exists, and no other thread sets an option.
    unsafe { mi_option_get(15) }
}

/// Another thread may read the environment and the allocator's settings at any time.
fn two_threads_keep_their_settings() {
    thread::spawn(thread::park);
    let before = purge_delay();
    assert!(before > 0, "by default, pages are kept for a time");
    cli::prepare();
    assert_eq!((env::var_os(DATA_FOLDER), purge_delay()), (Some("".into()), before));
}

fn a_failed_allocation() {
    cli::prepare();
    let free = machine::memory().expect("Linux reports its memory").free.bytes as usize;
    // Free memory can be had, and more cannot.
    black_box(vec![1u8; free / 2]);
    black_box(vec![1u8; free + (64 << 20)]);
}

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

fn a_later_step() {
    cli::prepare();
    step();
    // Longer than mimalloc would keep it.
    thread::sleep(Duration::from_millis(1200));
    let faults = [step(), step()];
    // Of 84 MiB, however large the pages are.
    assert!(faults.iter().sum::<u64>() < 16, "{faults:?} page faults");
}
