//! The stage from outside, in one program.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

mod cases;
mod checkpoints;
mod numbers;
mod sentences;
