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
//! # How a check is written
//!
//! A check is a list of laws. A *law* is a function that judges an answer in one case and returns an [`Outcome`]: nothing or
//! a [`Finding`]. A finding has the mistake, the expected value, the answer's value, and the broken law. A *case* has the numbers that
//! change, such as world size and shape, and prints these numbers with [`shown!`]. [`laws!`] applies a law to a table of cases.
//!
//! `checks/ch02_ring.rs` is a whole check of an all-reduce, and `answers/ch02_ring/wrong.diff` has the messages of its mistakes.
//!
//! A law calls the answer without further ado. [`over`](laws::over) catches panics and endless loops, and [`ranks`] finds deadlocks.
//! Each message begins with the case. [`Expectation`] compares numbers, [`same`](outcome::same) compares other values,
//! [`expect`](outcome::expect) demands a condition, and [`refused`](outcome::refused) demands an error. A message has a guess at the
//! mistake only if the guess explains all wrong numbers.

#![deny(missing_docs)]

pub mod attention;
pub mod call;
#[path = "../checks/mod.rs"]
pub mod checks;
pub mod classifier;
pub mod contributions;
pub mod expectation;
pub mod laws;
pub mod metrics;
pub mod micro_batches;
pub mod outcome;
pub mod overlap;
pub mod prelude;
pub mod ranks;
pub mod replicas;
#[path = "../runs/mod.rs"]
pub mod runs;
pub mod scaling;
pub mod sharded;
pub mod shards;
pub mod speed;
pub mod stages;
pub mod tracer;
pub mod training;
pub mod two_layers;

pub use expectation::Expectation;
pub use outcome::{Finding, Outcome};
