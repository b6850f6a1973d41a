//! The commands around the exercises, on a small workspace of their own.

#[cfg(unix)]
mod asking;
pub mod fixture;
mod mistakes;
mod reader;
mod runaway;
#[cfg(unix)]
mod watching;
