//! What the tests that span the stages share: results that PyTorch computed, and inputs that any
//! language can compute.

mod fixture;
mod noise;

pub use fixture::Fixture;
pub use noise::noise;
