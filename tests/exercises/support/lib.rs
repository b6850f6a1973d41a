//! The checks of the course's exercises, and the code that they share.
//!
//! A learner writes in a file beside this folder, such as `ch02_ring.rs`, and asks with
//!
//! ```text
//! cargo course check ch02_ring
//! ```
//!
//! The file is a program: its last line, [`check!`], checks the answer against the laws of its module in [`checks`]. The
//! same laws judge the stub, our solution and all known mistakes (`verify.rs`).
//!
//! A message says which law is broken, and no answer can hang the check. [`mod@laws`] runs the laws and reports
//! them; [`ranks`] runs an answer on several ranks; [`limit`] ends work that does not end by itself; [`expectation`],
//! [`mismatch`] and [`refusal`] compare, and name the law that was broken. The rest is data for the checks.

#![deny(missing_docs)]

#[path = "../checks/mod.rs"]
pub mod checks;
pub mod classifier;
pub mod contributions;
pub mod dense;
pub mod expectation;
pub mod laws;
pub mod limit;
pub mod metrics;
pub mod micro_batches;
pub mod mismatch;
pub mod overlap;
pub mod panic;
pub mod prelude;
pub mod ranks;
pub mod refusal;
pub mod replicas;
#[path = "../runs/mod.rs"]
pub mod runs;
pub mod scaling;
pub mod speed;
pub mod stages;
pub mod tracer;
pub mod training;
pub mod two_layers;

pub use expectation::Expectation;
