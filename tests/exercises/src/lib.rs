//! What the checks of the course's exercises share.
//!
//! Each exercise is a folder of this package. A learner writes in its `exercise.rs` and asks with
//!
//! ```text
//! cargo course check ch02_ring
//! ```
//!
//! Nobody should have to guess what a failure means, and no answer may hang or hide another:
//!
//! | module | what it does for a check |
//! | --- | --- |
//! | [`limit`] | ends what never ends |
//! | `panic` | keeps what a panic said, and where |
//! | [`ranks`] | runs an answer on k ranks, counts what they send, and tells a deadlock as one |
//! | [`contributions`] | gives each rank numbers that show in a sum: who is missing, who was added twice |
//! | [`expectation`] | compares numbers, and says where they part and which law that breaks |
//! | [`mismatch`] | the same for what is no list of numbers |
//! | [`refusal`] | demands an error of what cannot be right |
//! | [`classifier`] | a model that learns in a few steps |
//! | [`tracer`] | samples that show in an update: which took part, and how much each counted |
//! | [`replicas`] | compares the weights of ranks |
//! | [`scaling`], [`experiment`] | what chapter 4's exercises are given |
//! | [`dense`] | the model once more, for stage 5's wrappers |
//! | [`micro_batches`], [`speed`], [`training`] | what chapter 5's exercises are given |
//! | [`two_layers`] | what chapter 6's exercises are given |
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
