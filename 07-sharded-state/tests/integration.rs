//! The stage from outside, in one program.

mod cases;
mod cli;
mod numbers;
