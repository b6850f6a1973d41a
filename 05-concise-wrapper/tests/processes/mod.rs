//! The binary under `mpirun`: what it computes, and how it fails. Where there is no `mpirun`, these tests are
//! skipped, and say so.

#![cfg(all(feature = "mpi", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod faults;
mod job;
mod kills;
mod refusals;
mod results;
mod training;
mod two_machines;

/// The program that is tested.
fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_concise-wrapper")
}
