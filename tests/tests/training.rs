//! Whether training is correct, in one program: each operation, one device, k devices, and a run that is interrupted.
//! Apart are tests that need a process of their own: `processor_time` counts its threads' time, and TF32 (`tf32`) is a
//! switch of the whole process.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod checkpoints;
mod equivalence;
mod finite_differences;
mod first_step;
mod gpt;
mod gpu;
mod overlap;
mod precision;
mod prelude;
mod pytorch;
mod reproducible;
mod resnet18;
mod wrappers;
