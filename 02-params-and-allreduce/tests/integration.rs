//! The stage from outside, in one program. Apart are `faults`, which measures how soon a fault is noticed, and `mpi`.

mod cli;
mod loans;
mod nccl;
mod stuck;
mod sums;
mod traffic;
