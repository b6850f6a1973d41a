//! The program under `mpirun`. Where there is no `mpirun`, these tests are skipped, and say so.

#![cfg(all(feature = "mpi", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

#[allow(dead_code, reason = "stage 5's tests use all of it")]
#[path = "../../../05-concise-wrapper/tests/processes/job.rs"]
mod job;
#[path = "../../../tests/src/mpirun.rs"]
mod mpirun;

use job::{Ended, Started, alone, hashes, mpirun, processes, refused, turn};

/// The program that is tested.
fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_sharded-state")
}

const SMALL: [&str; 8] = [
    "--device=cpu",
    "--threads-per-device=1",
    "--data=synthetic",
    "--train-size=100",
    "--test-size=20",
    "--batch-size=32",
    "--epochs=1",
    "--widths=24,20,16",
];

#[test]
fn processes_come_to_the_bits_of_threads() {
    let _turn = turn();
    for ranks in [2, 4] {
        let Some(mut job) = processes(ranks) else { return };
        job.args(SMALL);
        let mut threads = alone();
        threads.args(SMALL).arg(format!("--devices={ranks}"));
        let (processes, threads) = (hashes(job), hashes(threads));
        assert_eq!(processes.len(), 6);
        // Threads train on one device first.
        assert_eq!(processes, threads[1..]);
    }
}

#[test]
fn what_cannot_be_is_told_once() {
    let _turn = turn();
    for (flags, says) in [
        (&["--devices=3"][..], "2 processes were started, one for each device, and --devices is 3"),
        (&["--slow-link=9"], "--slow-link needs a clock that all ranks read"),
        (&["--gantt=/dev/null/at/all"], "--gantt /dev/null/at/all"),
    ] {
        let Some(mut job) = processes(2) else { return };
        job.args(SMALL).args(flags);
        refused(job, 2, says);
    }
    let Some(mut job) = mpirun("two different ranks") else { return };
    job.args(["-n", "1", binary()]).args(SMALL).args(["--strategy=zero1"]);
    job.args([":", "-n", "1", binary()]).args(SMALL).args(["--strategy=zero2"]);
    let Ended { code, text, .. } = Started::new(job).end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("rank 1 has run ZeRO 2, rank 0 has ZeRO 1"), "{text}");
}

#[test]
fn drawings_are_made_once() {
    let _turn = turn();
    let Some(mut job) = processes(2) else { return };
    job.args(["--draw", "--strategy=zero1"]);
    let Ended { success, text, .. } = Started::new(job).end();
    assert!(success, "{text}");
    assert_eq!(text.matches("ZeRO 1: 3 units").count(), 1, "{text}");
}
