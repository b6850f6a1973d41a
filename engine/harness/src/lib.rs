//! The parts that all programs of the course share: flags, exit codes, progress, files of results, Ctrl-C.
//! This crate does not use candle, so it builds in seconds.

mod allocator;
pub mod cli;
pub mod images;
pub mod interrupt;
pub mod launcher;
pub mod load;
pub mod lock;
pub mod machine;
pub mod random;
pub mod recording;
pub mod records;
pub mod report;
pub mod statistics;
pub mod stopwatch;
pub mod verdict;
