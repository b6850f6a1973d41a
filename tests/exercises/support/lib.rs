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
//! A check is a list of laws. A *law* is a function that judges an answer in one case and returns an [`Outcome`]: nothing, or
//! a [`Finding`], which says what is wrong, what was expected, what the answer gave, and the law that is broken. A *case* has
//! the numbers that change, such as world size and shape, and prints itself with [`shown!`]. [`laws!`] applies a law to a table of cases.
//!
//! ```
//! use exercises::prelude::*;
//!
//! pub type Answer = fn(&Rank, &Tensor) -> Result<Tensor, Error>;
//! pub const LAWS: &[Law<Answer>] = laws![every_rank_has_the_sum in CASES, errors_are_passed_on];
//!
//! #[derive(Clone, Copy)]
//! struct Case { ranks: usize, shape: &'static [usize] }
//! const CASES: [Case; 2] = [Case { ranks: 2, shape: &[3] }, Case { ranks: 3, shape: &[] }];
//!
//! shown!(Case { ranks, shape } => "shape {shape:?} on {ranks} ranks");
//!
//! fn every_rank_has_the_sum(answer: Answer, &Case { ranks, shape }: &Case) -> Outcome {
//!     let sums = ranks::run(ranks, Sends::Buffered, move |rank| answer(rank, &contribution(rank.rank(), shape)?))?;
//!     sums.iter().enumerate().try_for_each(|(rank, got)| {
//!         let what = Expectation::of(format!("the sum on rank {rank}")).law("sum all ranks").guess(guess(ranks));
//!         what.compare_tensors(&sum(ranks, shape)?, got)
//!     })
//! }
//!
//! fn errors_are_passed_on(answer: Answer) -> Outcome {
//!     ranks::errors_are_passed_on(3, Sends::Buffered, move |rank| answer(rank, &contribution(rank.rank(), 4)?))
//! }
//!
//! let ours: Answer = |rank, tensor| rank.all_reduce(tensor, Algorithm::Naive);
//! assert!(LAWS.iter().all(|(_, law)| law(ours).is_ok()));
//! let wrong: Answer = |_, tensor| Ok(tensor.clone());
//! let message = LAWS[0].1(wrong).unwrap_err().to_string();
//! assert!(message.starts_with("shape [3] on 2 ranks: the sum on rank 0 is wrong at element 0 (3 wrong of 3)"));
//! assert!(message.ends_with("that is the sum without rank 1\n  law: sum all ranks"));
//! ```
//!
//! A finding and a panic of the answer begin with the case, and each case has a time limit. So a law calls the answer without
//! further ado: [`over`](laws::over) catches panics and endless loops, and [`ranks`] finds deadlocks. The other tools return
//! outcomes, too: [`Expectation`] compares numbers, [`same`](outcome::same) other values, [`demand`](outcome::demand) is for
//! conditions, and [`refused`](outcome::refused) for input that an answer has to refuse. A guess at the mistake is shown only if
//! it explains all wrong numbers.

#![deny(missing_docs)]

pub mod call;
#[path = "../checks/mod.rs"]
pub mod checks;
pub mod classifier;
pub mod contributions;
pub mod dense;
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
pub mod shards;
pub mod speed;
pub mod stages;
pub mod tracer;
pub mod training;
pub mod two_layers;

pub use expectation::Expectation;
pub use outcome::{Finding, Outcome};
