//! Ranks that are killed, asked to leave or stopped, at some moment; and a folder that two jobs want.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::job::{BOUNDED, Ended, Started, alone, hashes, processes, turn};
use super::training::{SMALL, checkpoints, reaches};

/// Long enough for something to happen in the middle.
const LONG: [&str; 3] = ["--shards=4", "--epochs=12", "--timeout=5"];

fn keeping(command: Command, folder: &Path) -> Command {
    keeping_every(1, command, folder)
}

fn keeping_every(steps: usize, mut command: Command, folder: &Path) -> Command {
    command.args(SMALL).args(LONG).arg(format!("--checkpoint-every={steps}"));
    command.arg("--checkpoint").arg(folder);
    command
}

/// A run that nothing happens to.
fn uninterrupted() -> String {
    let mut command = alone();
    command.args(SMALL).args(LONG).arg("--devices=1");
    hashes(command).pop().unwrap()
}

/// Goes on with so many processes, to the hash of a run that nothing happened to.
fn assert_goes_on(folder: &Path, ranks: usize) {
    let found = checkpoints(folder);
    assert!(!found.is_empty());
    let mut job = keeping(processes(ranks).unwrap(), folder);
    // Not the latest valid one: the newest has to be whole.
    job.arg("--resume");
    assert_eq!(hashes(job).pop().unwrap(), uninterrupted(), "after step {}", found.len());
}

#[test]
fn a_killed_rank_ends_the_job_and_the_run_goes_on() {
    let _turn = turn();
    for (killed, ranks_then) in [(1, 3), (0, 2)] {
        let folder = TempDir::new().unwrap();
        let Some(job) = processes(3) else { return };
        let mut job = Started::new(keeping(job, folder.path()));
        reaches(&mut job, folder.path(), 5);
        job.signal(killed, "-KILL");
        let Ended { success, text, took, .. } = job.end();
        assert!(!success && took < BOUNDED, "{took:?}\n{text}");
        assert!(text.contains(&format!("rank {killed}")), "{text}");
        assert_goes_on(folder.path(), ranks_then);
    }
}

#[test]
fn a_rank_that_is_asked_to_leave_takes_all_along_after_a_checkpoint() {
    let _turn = turn();
    let folder = TempDir::new().unwrap();
    let Some(job) = processes(3) else { return };
    // The one at the end of the last step is the only one.
    let mut job = keeping_every(1_000_000, job, folder.path());
    let metrics = folder.path().join("metrics");
    job.arg("--metrics").arg(&metrics);
    let mut job = Started::new(job);
    // An epoch's line says that it trains.
    job.until(|| fs::read_to_string(&metrics).is_ok_and(|text| text.contains("epoch")));
    job.signal(2, "-TERM");
    let Ended { code, text, took, .. } = job.end();
    assert_eq!(code, Some(143), "{text}");
    assert!(took < BOUNDED && text.contains(", interrupted after"), "{took:?}\n{text}");
    assert_eq!(checkpoints(folder.path()).len(), 1, "{text}");
    assert_goes_on(folder.path(), 2);
}

#[test]
fn mpirun_that_is_asked_to_end_leaves_a_whole_checkpoint() {
    let _turn = turn();
    let folder = TempDir::new().unwrap();
    let Some(job) = processes(2) else { return };
    let mut job = Started::new(keeping(job, folder.path()));
    reaches(&mut job, folder.path(), 3);
    job.signal_mpirun("-TERM");
    let Ended { success, text, took, .. } = job.end();
    assert!(!success && took < BOUNDED, "{took:?}\n{text}");
    assert_goes_on(folder.path(), 2);
}

#[test]
fn a_rank_that_stands_still_is_named_and_the_job_ends() {
    let _turn = turn();
    let folder = TempDir::new().unwrap();
    let Some(job) = processes(3) else { return };
    let mut job = Started::new(keeping(job, folder.path()));
    reaches(&mut job, folder.path(), 3);
    job.signal(2, "-STOP");
    let Ended { success, text, took, .. } = job.end();
    assert!(!success && took < BOUNDED, "{took:?}\n{text}");
    assert!(text.contains("rank 2 sent nothing for 5.0 s, does not answer"), "{text}");
    assert_goes_on(folder.path(), 3);
}

#[test]
fn a_folder_is_one_job_s() {
    let _turn = turn();
    let folder = TempDir::new().unwrap();
    let Some(first) = processes(2) else { return };
    let mut first = Started::new(keeping(first, folder.path()));
    reaches(&mut first, folder.path(), 2);
    let mut second = keeping(processes(2).unwrap(), folder.path());
    second.arg("--resume");
    let Ended { success, text, took, .. } = Started::new(second).end();
    assert!(!success && took < BOUNDED, "{text}");
    assert!(text.contains("another run keeps its checkpoints in"), "{text}");
    let Ended { success, text, .. } = first.end();
    assert!(success, "the first is not disturbed:\n{text}");
}
