//! Tests of several operations, and helpers for the tests of one.

pub(crate) mod agreement;
mod not_finite;
