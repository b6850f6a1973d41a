//! The learner's answers that have passed their checks, in one program.
//!
//! `cargo course run mine` writes the modules of the answers. Programs of answers that do not compile are left alone: cargo
//! would build all of them for a test target.

include!(env!("EXERCISES_CANDIDATES"));
