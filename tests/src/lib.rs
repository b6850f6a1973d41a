//! What the tests that span the stages share: results that PyTorch computed, inputs that any language
//! can compute, and programs in the place of others. And what the course tool and the tests have in common:
//! the rules of the book, what an all-reduce sends, step by step, what pipeline schedules come to, what the
//! cost model says, how numbers and files of the book's data are written, and what a release tells of itself.

#![expect(missing_docs, reason = "the tool and the tests of this package are the only readers")]

pub mod book;
mod device;
pub mod distance;
mod fixture;
pub mod html;
pub mod lenet;
mod machine;
mod noise;
pub mod number;
pub mod release;
pub mod scaling;
pub mod schedules;
#[cfg(unix)]
pub mod signals;
#[cfg(unix)]
pub mod stand_in;
pub mod steps;
pub mod stored;

pub use device::{device, on_gpus, on_the_cpu, plan};
pub use fixture::Fixture;
pub use machine::Machine;
pub use noise::noise;
