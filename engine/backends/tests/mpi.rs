//! Ranks as processes: what they compute, and how they fail.
//!
//! Each test starts this very program again under `mpirun`, once for every rank, to run one of the cases of
//! [`mpi_cases`]. Where there is no `mpirun`, it is skipped, and says so.

#![cfg(feature = "mpi")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod mpi_cases;
#[path = "../../../tests/src/mpirun.rs"]
mod mpirun;

use std::env;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use harness::lock::locked;
use mpirun::mpirun;

/// No job takes that long, even on a busy machine, unless it hangs.
const HANGS: Duration = Duration::from_secs(120);

/// How long a job may take whose ranks wait for each other in vain: longer by far than they wait.
const BOUNDED: Duration = Duration::from_secs(30);

/// Names the case in the environment of the ranks.
const CASE: &str = "MPI_CASE";

/// How a job ended.
struct Job {
    success: bool,
    /// What its ranks and `mpirun` wrote.
    text: String,
    took: Duration,
}

/// Runs a case on so many ranks; `None` where there is no `mpirun`.
fn run(ranks: usize, case: &str) -> Option<Job> {
    // One job at a time: its ranks need more cores than there are already.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = locked(&TURN);
    let mpirun = mpirun(&format!("{case} on {ranks} processes"))?;
    let started = Instant::now();
    let output = assert_cmd::Command::from_std(mpirun)
        .args(["-n", &ranks.to_string()])
        .arg(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "one_rank", "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .env("RUST_BACKTRACE", "0")
        .timeout(HANGS)
        .output()
        .unwrap();
    let took = started.elapsed();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let text = text.join("\n");
    println!("{case} on {ranks} processes: {:.1} s, {}", took.as_secs_f64(), output.status);
    Some(Job { success: output.status.success(), text, took })
}

#[test]
#[ignore = "one rank of a job: the other tests start it under mpirun"]
fn one_rank() {
    match env::var(CASE) {
        Ok(case) => mpi_cases::run(&case),
        Err(_) => eprintln!("SKIPPED: one rank of a job that nobody started"),
    }
}

fn succeeds(ranks: usize, case: &str) {
    if let Some(job) = run(ranks, case) {
        assert!(job.success, "{case} on {ranks} ranks:\n{}", job.text);
        let passed = job.text.matches("1 passed").count();
        assert_eq!(passed, ranks, "{case}: every rank has to take part:\n{}", job.text);
    }
}

/// The job ends soon, with a failure, and says this.
fn fails(ranks: usize, case: &str, says: &str) {
    if let Some(job) = run(ranks, case) {
        assert!(!job.success, "{case} on {ranks} ranks did not fail:\n{}", job.text);
        assert!(job.took < BOUNDED, "{case} on {ranks} ranks took {:?}:\n{}", job.took, job.text);
        assert!(
            job.text.contains(says),
            "{case} on {ranks} ranks: {says:?} is not in\n{}",
            job.text
        );
        if says.contains("rank") {
            let reports = |line: &&str| line.starts_with("rank ");
            assert_eq!(job.text.lines().filter(reports).count(), 1, "{case}:\n{}", job.text);
        }
    }
}

/// The cases of [`mpi_cases`] that end well. Their comments say what they are about.
#[test]
fn ranks_exchange_tensors() {
    for (case, worlds) in [
        ("collectives", &[2, 3, 4][..]),
        ("native", &[1, 2, 3, 4]),
        ("large", &[2, 4]),
        ("parting", &[3]),
        ("in-vain", &[3]),
        ("two-connections", &[2, 4]),
        ("no-such-rank", &[2]),
        ("outlived", &[2]),
        ("paused", &[2]),
    ] {
        worlds.iter().for_each(|&ranks| succeeds(ranks, case));
    }
}

#[test]
#[ignore = "needs 11 GB of memory"]
fn tensors_above_2_gib_arrive() {
    succeeds(2, "huge");
}

#[test]
fn a_failure_names_its_rank_and_ends_the_job() {
    for (ranks, case, says) in [
        (2, "wrong-shape", "rank 1 failed: rank 0 sent F32 [2, 3], but rank 1 expected F32 [3, 2]"),
        (2, "wrong-type", "rank 1 failed: rank 0 sent F64 [2], but rank 1 expected I64 [2]"),
        (2, "stall", "rank 0 failed: rank 0 waited 2.0 s: rank 1 is alive but sends nothing"),
        (4, "stall", "rank 0 failed: rank 0 waited 2.0 s: rank 3 is alive but sends nothing"),
        (2, "stall-native", "rank 0 waited 2.0 s: rank 1 is alive but sends nothing"),
        (4, "stall-native", "rank 0 waited 2.0 s: rank 3 is alive but sends nothing"),
        (2, "sum-given-up", "rank 0 failed: it left while a sum of all ranks was unfinished"),
        (2, "other-size", ""),
        (2, "stopped", "rank 1 sent nothing for 2.0 s, does not answer within 1 s"),
        (2, "deadlock", "failed: deadlock: rank 0 waits for rank 1, which waits for rank 0"),
        (2, "early", "rank 0 failed: rank 1 returned early, and rank 0 still needed it"),
        (4, "error", "rank 3 failed: disk full"),
        (4, "panic", "rank 3 panicked: out of paper"),
        (2, "killed", "signal 9"),
        (4, "killed", "signal 9"),
    ] {
        fails(ranks, case, says);
    }
}

/// Other ranks wait for the stopped process, too: one rank is named.
#[test]
fn of_many_waiting_ranks_the_stopped_one_is_named() {
    for (ranks, case) in
        [(3, "stopped-in-a-ring"), (4, "stopped-in-a-ring"), (3, "stopped-before-another")]
    {
        let Some(job) = run(ranks, case) else { return };
        assert!(!job.text.contains("deadlock"), "{}", job.text);
        let accused = |rank: usize| job.text.contains(&format!(": rank {rank} sent nothing for"));
        let accused: Vec<usize> = (0..ranks).filter(|&rank| accused(rank)).collect();
        assert_eq!(accused, [ranks - 1], "{}", job.text);
    }
}

#[test]
fn the_table_has_a_row_for_each_algorithm() {
    let Some(mpirun) = mpirun("the table") else { return };
    let output = assert_cmd::Command::from_std(mpirun)
        .args(["-n", "2", env!("CARGO_BIN_EXE_all-reduce-table"), "--device=cpu", "--runs=1"])
        .timeout(HANGS)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for row in ["2 processes of MPI", "one-shot", "naive", "tree", "ring", "native"] {
        // A sentence may begin with the name, too.
        let is_row = |rest: &str| rest.starts_with("  ") || rest.starts_with(", here");
        let names = text.lines().filter_map(|line| line.trim_start().strip_prefix(row));
        assert_eq!(names.filter(|rest| is_row(rest)).count(), 1, "{row}:\n{text}");
    }
}
