//! `verify` and `soak`, on a small workspace of their own.

#[path = "../../../course/tests/exercises/fixture.rs"]
mod fixture;
mod soundness;
