//! What the checks of the course's exercises share.
//!
//! Each exercise is a folder of this package. A learner writes in its `exercise.rs` and asks with
//!
//! ```text
//! cargo course check ch02_ring
//! ```
//!
//! Nobody should have to guess what a failure means, and no answer may hang or hide another.
//!
//! The same check serves the learner's file, the solution and every known wrong answer; see `build.rs`.
//!
//! Left out: what is right. Each check derives that itself, from a formula or from the stages.

#![deny(missing_docs)]

pub mod classifier;
pub mod contributions;
pub mod dense;
pub mod expectation;
pub mod experiment;
pub mod limit;
pub mod micro_batches;
pub mod mismatch;
mod panic;
pub mod prelude;
pub mod ranks;
pub mod refusal;
pub mod replicas;
pub mod scaling;
pub mod speed;
pub mod tracer;
pub mod training;
pub mod two_layers;

pub use expectation::Expectation;
pub use limit::{called_within, within};
