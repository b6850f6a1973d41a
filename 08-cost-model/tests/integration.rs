//! The stage from outside, in one program.

mod cli;
mod clocks;
