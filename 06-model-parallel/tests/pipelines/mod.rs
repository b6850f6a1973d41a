//! Pipelines that train: with the numbers of one device, whatever the cut and the schedule.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod batch_norm;
mod evaluation;
mod failures;
mod halves;
mod layers;
mod measured;
pub mod mesh;
mod model;
pub mod numbers;
mod random;
#[cfg(unix)]
mod signals;
pub mod training;
