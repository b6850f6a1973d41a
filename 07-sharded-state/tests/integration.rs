//! The stage from outside, in one program.

mod cases;
mod checkpoints;
mod numbers;
