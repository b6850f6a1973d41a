//! Ranks as processes: what they compute, and how they fail.
//!
//! Each test starts this very program again under `mpirun`, once for every rank, to run one of the cases of
//! [`mpi_cases`]. Where there is no `mpirun`, it is skipped, and says so.

#![cfg(feature = "mpi")]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod mpi_cases;

use std::env;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use harness::launcher;
use harness::lock::locked;

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
    let mpirun = match launcher::command() {
        Ok(mpirun) => mpirun,
        Err(error) => {
            eprintln!("SKIPPED: {case} on {ranks} processes: no mpirun was found ({error})");
            return None;
        }
    };
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

#[test]
fn every_collective_gives_the_bits_that_threads_give() {
    for ranks in [2, 3, 4] {
        succeeds(ranks, "collectives");
    }
}

#[test]
fn mpis_own_sum_is_the_sum_and_the_same_everywhere() {
    for ranks in [1, 2, 3, 4] {
        succeeds(ranks, "native");
    }
}

#[test]
fn everyone_may_send_large_tensors_first_and_receive_then() {
    for ranks in [2, 4] {
        succeeds(ranks, "large");
    }
}

#[test]
#[ignore = "needs 11 GB of memory"]
fn tensors_above_2_gib_arrive() {
    succeeds(2, "huge");
}

#[test]
fn what_was_sent_arrives_although_its_sender_is_done() {
    succeeds(3, "parting");
}

#[test]
fn what_is_sent_to_a_rank_that_is_done_stops_nobody() {
    succeeds(3, "in-vain");
}

#[test]
fn two_threads_of_a_rank_communicate_at_the_same_time() {
    for ranks in [2, 4] {
        succeeds(ranks, "two-connections");
    }
}

#[test]
fn ranks_that_do_not_exist_are_refused() {
    succeeds(2, "no-such-rank");
}

#[test]
fn a_line_that_outlives_its_rank_says_so() {
    succeeds(2, "outlived");
}

#[test]
fn a_mismatch_is_named() {
    fails(
        2,
        "wrong-shape",
        "rank 1 failed: rank 0 sent F32 [2, 3], but rank 1 expected F32 [3, 2]",
    );
    fails(2, "wrong-type", "rank 1 failed: rank 0 sent F64 [2], but rank 1 expected I64 [2]");
}

#[test]
fn whoever_stalls_is_named_at_the_end_of_the_chain() {
    let says = "rank 0 failed: rank 0 waited 2.0 s: rank 1 is alive but sends nothing";
    fails(2, "stall", says);
    fails(4, "stall", &says.replace("rank 1", "rank 3"));
}

#[test]
fn whoever_keeps_away_from_mpis_own_sum_is_named() {
    fails(2, "stall-native", "rank 0 waited 2.0 s: rank 1 is alive but sends nothing");
    fails(4, "stall-native", "rank 0 waited 2.0 s: rank 3 is alive but sends nothing");
}

#[test]
fn a_sum_that_is_given_up_ends_the_job() {
    fails(2, "sum-given-up", "rank 0 failed: it left while a sum of all ranks was unfinished");
}

#[test]
fn mpis_own_sum_of_different_sizes_ends_the_job() {
    fails(2, "other-size", "");
}

#[test]
fn a_process_that_the_system_has_stopped_is_named() {
    fails(2, "stopped", "rank 1 sent nothing for 2.0 s, does not answer within 1 s");
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
fn time_for_which_the_job_was_stopped_does_not_count() {
    succeeds(2, "paused");
}

#[test]
fn a_circle_is_told() {
    fails(2, "deadlock", "failed: deadlock: rank 0 waits for rank 1, which waits for rank 0");
}

#[test]
fn a_rank_that_returned_early_is_named() {
    fails(2, "early", "rank 0 failed: rank 1 returned early, and rank 0 still needed it");
}

#[test]
fn errors_and_panics_end_the_job() {
    fails(4, "error", "rank 3 failed: disk full");
    fails(4, "panic", "rank 3 panicked: out of paper");
}

#[test]
fn a_killed_rank_ends_the_job() {
    fails(2, "killed", "signal 9");
    fails(4, "killed", "signal 9");
}

#[test]
fn the_table_has_a_row_for_each_algorithm() {
    let Ok(mpirun) = launcher::command() else {
        return eprintln!("SKIPPED: the table: no mpirun was found");
    };
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
