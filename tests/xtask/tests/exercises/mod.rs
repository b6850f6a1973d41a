//! `verify` and `soak`, on a small workspace of their own.

#[expect(dead_code, reason = "the tests of the learner's tool need more of it")]
#[path = "../../../course/tests/exercises/fixture.rs"]
mod fixture;
mod soundness;
