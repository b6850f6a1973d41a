//! What the tests that span the stages share: results that PyTorch computed, and inputs that any language can compute.

mod device;
pub mod distance;
mod fixture;
pub mod lenet;
mod noise;
pub mod signals;

pub use device::{device, on_gpus, on_the_cpu, plan};
pub use fixture::Fixture;
pub use noise::noise;
