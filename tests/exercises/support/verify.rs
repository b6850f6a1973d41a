//! All candidates of all exercises in one program, which runs the one that its arguments name: `EXERCISE CANDIDATE`.
//!
//! `cargo xtask verify` writes the modules of the candidates, and their list.

include!(env!("EXERCISES_CANDIDATES"));
