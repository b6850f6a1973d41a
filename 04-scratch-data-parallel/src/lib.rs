//! Stage 4: data parallelism from scratch.
//!
//! k devices train one model. Each has a copy of the parameters (stage 2) and a shard of every batch
//! (stage 3). Each computes the gradients of its shard; an all-reduce adds them up; every device makes
//! the same update. The copies stay equal, to the last bit, without ever being compared.
//!
//! And the numbers are those of one device: the gradient of a sum is the sum of the gradients, so only
//! the order of some additions differs.
//!
//! | module | what it teaches |
//! | --- | --- |
//! | [`mod@train_batch`] | one step on k devices: the line that makes it data-parallel |
//! | [`mod@train`] | the whole run: replicas, epochs, one device that reports |
//! | [`reproducible`] | the same bits on any number of devices |
//! | [`fixed_tree`], [`tree_sum`] | a sum along a tree that does not depend on the number of ranks |
//! | [`method`] | which of these a run uses |
//! | [`replicas`] | are they still one model? |
//! | [`mod@evaluate`] | test images on all devices |
//! | [`breakage`] | the field's real bugs, to be run on purpose |
//!
//! Left out on purpose: gradients that travel while the backward pass still runs, and a wrapper that
//! hides all this (stage 5).

pub mod breakage;
mod error;
pub mod evaluate;
pub mod fixed_tree;
pub mod method;
pub mod replicas;
pub mod reproducible;
pub mod train;
pub mod train_batch;
pub mod tree_sum;

pub use error::Error;
pub use fixed_tree::FixedTree;
pub use method::Method;
pub use reproducible::{check_shards, train_batch_reproducible};
pub use train::train;
pub use train_batch::{allreduce_sums, train_batch};
pub use tree_sum::TreeSum;
