//! The stage from outside, in one program. Apart are `faults`, which measures how soon a fault is noticed.

mod cli;
mod collective;
mod ownership;
mod stuck;
mod sums;
mod traffic;
