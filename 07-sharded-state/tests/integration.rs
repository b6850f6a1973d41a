//! The stage from outside, in one program.

mod cases;
mod numbers;
mod sentences;
