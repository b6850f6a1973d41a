//! The stage from outside, in one program.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

#[path = "../../tests/src/before.rs"]
mod before;
mod bytes;
mod cases;
mod checkpoints;
mod cli;
#[path = "../../tests/src/device.rs"]
#[expect(dead_code, reason = "tests across stages use the rest")]
mod device;
mod evaluation;
mod faults;
#[path = "../../tests/src/files.rs"]
mod files;
mod gpu;
mod laws;
#[path = "../../tests/src/layers.rs"]
mod layers;
mod numbers;
mod random;
#[path = "../../tests/src/random.rs"]
mod random_numbers;
mod sentences;
mod signals;
#[path = "../../tests/src/watched.rs"]
mod watched;
