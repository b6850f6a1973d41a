//! A rank that never ends, or only after a long time, and a program that was stopped: what is made of it.
//!
//! Each test starts this very program again, to run one of the cases below.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output};
use std::thread::{park, sleep};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Shape, Tensor};
use devices::DevicePlan;
use harness::cli;
use harness::report::file;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::{GRACE, Rank, RankFailure, run_ranks};

/// How long ranks wait for each other where they do so in vain.
const SHORT: Duration = Duration::from_secs(1);
/// How long they do in a program that is stopped, and goes on.
const MIDDLING: Duration = Duration::from_secs(5);
/// And where nobody does.
const LONG: Duration = Duration::from_secs(60);
/// What else a run may take, on a busy machine.
const SLACK: Duration = Duration::from_secs(15);

const CASE: &str = "STUCK_CASE";
const FOLDER: &str = "STUCK_FOLDER";

/// What the rank is told that waits for another in vain.
const IN_VAIN: &str = "rank 0 failed: rank 0 waited 1.0 s: rank 1 is alive but sends nothing";

fn run(case: &str) -> (Output, Duration, Vec<PathBuf>) {
    let (folder, started) = (tempfile::tempdir().unwrap(), Instant::now());
    let output = assert_cmd::Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "stuck::one_case", "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .env(FOLDER, folder.path())
        .timeout(LONG)
        .output()
        .unwrap();
    let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    (output, started.elapsed(), left)
}

#[test]
#[ignore = "one case: the other tests start it"]
fn one_case() {
    let Ok(folder) = env::var(FOLDER).map(PathBuf::from) else {
        eprintln!("SKIPPED: a case that nobody started");
        return;
    };
    match env::var(CASE).unwrap().as_str() {
        "never" => {
            cli::prepare();
            print!("half a line");
            drop(ranks(SHORT, |rank| never_ends(rank, &folder)));
        }
        "late" => {
            let failure = ranks(SHORT, |rank| ends_late(rank, SHORT + GRACE + SHORT)).unwrap_err();
            assert_eq!(failure.to_string(), IN_VAIN);
        }
        "busy" => {
            cli::prepare();
            let failure = ranks(LONG, |rank| match rank.rank() {
                0 => Err(Error::Other("disk full".to_owned())),
                _ => ends_late(rank, GRACE + SHORT),
            });
            assert_eq!(failure.unwrap_err().to_string(), "rank 0 failed: disk full");
        }
        "stopped" => drop(ranks(MIDDLING, sends_after_a_stop).unwrap()),
        other => panic!("{other}"),
    }
}

fn ranks(
    timeout: Duration,
    work: impl Fn(&Rank) -> Result<(), Error> + Sync,
) -> Result<Vec<()>, RankFailure<Error>> {
    run_ranks(&DevicePlan::slices(2).unwrap(), timeout, work)
}

/// Rank 0 waits for rank 1, which is in the middle of a file, for ever.
fn never_ends(rank: &Rank, folder: &Path) -> Result<(), Error> {
    if rank.rank() == 0 {
        return waits_for(rank, 1);
    }
    let written = file::write(&folder.join("result"), |file| {
        file.write_all(b"half")?;
        file.flush()?;
        loop {
            park();
        }
    });
    written.map_err(|error| Error::Other(error.to_string()))
}

/// Rank 0 waits for rank 1, which sends nothing and ends after a while.
fn ends_late(rank: &Rank, after: Duration) -> Result<(), Error> {
    if rank.rank() == 0 {
        return waits_for(rank, 1);
    }
    sleep(after);
    Ok(())
}

/// Rank 0 waits for rank 1, and meanwhile the program is stopped for longer than it may wait.
fn sends_after_a_stop(rank: &Rank) -> Result<(), Error> {
    rank.barrier()?;
    if rank.rank() == 0 {
        return waits_for(rank, 1);
    }
    // By now the other does.
    sleep(SHORT);
    let (program, seconds) = (process::id(), (MIDDLING + SHORT).as_secs());
    let stop = format!("kill -STOP {program} && sleep {seconds} && kill -CONT {program}");
    assert!(Command::new("sh").args(["-c", &stop]).status().unwrap().success());
    // The others have gone on, too, and would give up now.
    sleep(SHORT);
    rank.send(0, &Tensor::zeros((), DType::F32, &Device::Cpu)?)
}

fn waits_for(rank: &Rank, other: usize) -> Result<(), Error> {
    rank.recv(other, &Shape::from(()), DType::F32).map(drop)
}

#[test]
fn a_program_ends_without_a_rank_that_never_does() {
    let (output, took, left) = run("never");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let seconds = GRACE.as_secs();
    let line = format!("error: {IN_VAIN}; {seconds} s later rank 1 has not come back\n");
    assert!(told.ends_with(&line), "{told}");
    assert!(took < SHORT + GRACE + SLACK, "{took:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.ends_with("half a line"), "{printed}");
    assert_eq!(left, Vec::<PathBuf>::new());
}

/// Somebody's test: it has to see the failure, and not to end in the middle.
#[test]
fn any_other_process_is_told_and_goes_on() {
    let (output, _, _) = run("late");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("later rank 1 has not come back"), "{told}");
}

/// As one that tests many images is, or makes a long step.
#[test]
fn a_rank_that_nobody_has_waited_for_may_be_busy_when_another_fails() {
    let (output, _, _) = run("busy");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(!told.contains("has not come back"), "{told}");
}

/// With Ctrl-Z, or by a debugger: clocks go on, and no rank does.
#[test]
fn a_program_may_be_stopped_for_longer_than_ranks_wait() {
    let (output, took, _) = run("stopped");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(took > MIDDLING, "{took:?}");
}
