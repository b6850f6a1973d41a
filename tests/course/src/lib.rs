//! The parts of the learner's tool that `cargo xtask` also uses.

#![expect(missing_docs, reason = "the two tools are the only readers")]

pub mod divergence;
pub mod doctor;
pub mod exercises;
pub mod process;
