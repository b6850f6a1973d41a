//! The learner's tool, as a library: what `cargo xtask` shares with it.

#![expect(missing_docs, reason = "the two tools are the only readers")]

pub mod divergence;
pub mod doctor;
pub mod exercises;
pub mod process;
