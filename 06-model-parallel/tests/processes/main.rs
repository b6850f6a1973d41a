//! The program under `mpirun`: stages and parts as processes. Where there is no `mpirun`, these tests are skipped,
//! and say so.

#![cfg(all(feature = "mpi", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod faults;
#[allow(dead_code, reason = "stage 5's tests use all of it")]
#[path = "../../../05-concise-wrapper/tests/processes/job.rs"]
mod job;
#[path = "../../../tests/src/mpirun.rs"]
mod mpirun;
mod refusals;
mod results;

/// The program that is tested.
fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_model-parallel")
}

/// A small network on few images: seven steps an epoch, the last of them smaller.
const SMALL: [&str; 6] = [
    "--device=cpu",
    "--threads-per-device=1",
    "--data=synthetic",
    "--train-size=200",
    "--test-size=20",
    "--batch-size=32",
];
