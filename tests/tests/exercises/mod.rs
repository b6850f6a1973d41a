//! The commands around the exercises, on a small workspace of their own.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

#[cfg(unix)]
mod asking;
mod fixture;
mod mistakes;
mod reader;
mod runaway;
mod soundness;
#[cfg(unix)]
mod watching;
