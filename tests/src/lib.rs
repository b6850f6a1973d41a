//! What the tests that span the stages share: results that PyTorch computed, inputs that any language can
//! compute, and what an all-reduce sends, step by step.

mod fixture;
mod noise;
pub mod steps;

pub use fixture::Fixture;
pub use noise::noise;
