//! What `prepare` does to a process. Each case is a child of its own, which begins with one thread: the test harness of Rust
//! would start a second one.

use std::env;
use std::ffi::c_long;
use std::hint::black_box;
use std::io::{Read as _, Write, pipe};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use std::{fs, thread};

use harness::cli::{self, DATA_FOLDER};
use harness::machine;
use harness::report::file::{self, LazyFile};
use harness::report::{error_line, line};
use libmimalloc_sys::mi_option_get;

/// A name, a script of the shell that starts the child, the child's work, and the check of the child's end.
type Case = (&'static str, &'static str, fn(), fn(&Output));

const CASES: [Case; 5] = [
    ("two_threads_keep_their_settings", "exec \"$@\"", two_threads_keep_their_settings, succeeds),
    ("a_later_step_gets_the_memory_of_the_one_before", "exec \"$@\"", a_later_step, succeeds),
    (
        "a_failed_allocation_ends_in_one_line_with_the_limit",
        "ulimit -v 2000000 && exec \"$@\"",
        a_failed_allocation,
        says_the_limit,
    ),
    (
        "an_empty_variable_does_not_disable_colour",
        "NO_COLOR= exec \"$@\"",
        no_color_is_unset,
        succeeds,
    ),
    ("a_variable_disables_colour", "NO_COLOR=0 exec \"$@\"", no_color_is_set, succeeds),
];

/// The child that prints more than a pipe holds, on both streams and to `/dev/stdout`.
const PRINTS: (&str, fn()) = ("a_pipe_that_does_not_block_gets_every_byte", prints);

fn main() {
    const CHILD: &str = "PREPARED_CHILD";
    if !cfg!(target_os = "linux") {
        return;
    }
    if let Ok(child) = env::var(CHILD) {
        let cases = CASES.iter().map(|(name, _, work, _)| (*name, *work)).chain([PRINTS]);
        let mut cases = cases.chain(WAITS.map(|(name, work, _)| (name, work)));
        return cases.find(|(name, _)| *name == child).expect("a case has this name").1();
    }
    let this = env::current_exe().expect("this program has a path");
    for (name, script, _, check) in CASES {
        let mut child = Command::new("sh");
        child.args(["-c", script, "sh"]).arg(&this).env(CHILD, name).env(DATA_FOLDER, "");
        check(&child.output().expect("this program can be started"));
        println!("test {name} ... ok");
    }
    let (name, _) = PRINTS;
    for is_slow in [false, true] {
        gets_every_byte(Command::new(&this).env(CHILD, name), is_slow);
    }
    println!("test {name} ... ok");
    for (name, _, announced) in WAITS {
        is_announced(Command::new(&this).env(CHILD, name), announced);
        println!("test {name} ... ok");
    }
}

/// Children whose work before a run takes a while, and what they print on a terminal.
const WAITS: [(&str, fn(), &str); 2] = [
    ("slow_work_is_announced_on_a_terminal", || waits(1500), "drawing images …"),
    ("quick_work_is_not", || waits(100), ""),
];

fn waits(milliseconds: u64) {
    cli::prepare();
    let work = || thread::sleep(Duration::from_millis(milliseconds));
    cli::before_a_run("drawing images", work).expect("signals are reported");
}

/// Starts a child with a pipe, and then at a terminal of its own.
fn is_announced(child: &mut Command, announced: &str) {
    const TERMINAL: &str = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let text = |output: Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8([output.stdout, output.stderr].concat()).expect("text")
    };
    assert_eq!(text(child.output().expect("this program can be started")), "");
    let probe = Command::new("python3").args(["-c", "import pty; pty.openpty()"]).output();
    if !probe.is_ok_and(|answer| answer.status.success()) {
        return println!("SKIPPED: there is no Python that can make a terminal");
    }
    let mut at_a_terminal = Command::new("python3");
    at_a_terminal.args(["-c", TERMINAL]).arg(child.get_program()).stdin(Stdio::null());
    let variables = child.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let told = at_a_terminal.envs(variables).output().expect("Python can be started");
    assert_eq!(text(told).trim(), announced);
}

/// The first line on standard output, and the line that follows on both streams.
const LINE: &str = "A line of seventy bytes, as a program of the course prints it to a user";
const LINES: usize = 4000;

fn prints() {
    cli::prepare();
    for _ in 0..LINES {
        line(LINE).expect("there is a reader");
        error_line(LINE);
    }
    // A text that is larger than a pipe, in one call.
    line(format!("{LINE}\n").repeat(LINES).trim_end()).expect("there is a reader");
    let write = |to: &mut dyn Write| (0..LINES).try_for_each(|_| writeln!(to, "{LINE}"));
    file::write(Path::new("/dev/stdout"), write).expect("there is a reader");
    let mut metrics = LazyFile::new("--metrics", Path::new("/dev/stdout")).expect("it is open");
    (0..LINES).for_each(|_| metrics.append(format!("{LINE}\n").as_bytes()).expect("as above"));
}

/// Starts a child with two pipes that do not block, and reads all that it prints.
fn gets_every_byte(child: &mut Command, is_slow: bool) {
    let streams = [4 * LINES, LINES].map(|lines| {
        let (mut reader, writer) = pipe().expect("the system has pipes");
        rustix::io::ioctl_fionbio(&writer, true).expect("a pipe may be non-blocking");
        let read = thread::spawn(move || {
            if is_slow {
                thread::sleep(Duration::from_millis(500));
            }
            let mut text = String::new();
            reader.read_to_string(&mut text).expect("the lines are text");
            assert!(text.lines().all(|line| line == LINE), "a line is not whole");
            assert_eq!(text.lines().count(), lines);
        });
        (writer, read)
    });
    let [(stdout, output), (stderr, errors)] = streams;
    child.stdout(stdout).stderr(stderr);
    let status = child.status().expect("this program can be started");
    // The command has a copy of each writer.
    *child = Command::new("");
    for read in [output, errors] {
        read.join().expect("every byte arrives");
    }
    assert!(status.success());
}

fn no_color_is_unset() {
    cli::prepare();
    assert_eq!(env::var_os("NO_COLOR"), None);
}

fn no_color_is_set() {
    cli::prepare();
    assert_eq!(env::var_os("NO_COLOR"), Some("0".into()));
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
