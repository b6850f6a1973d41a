//! Stage 4: data parallelism from scratch.
//!
//! k devices train one model. Each device has a copy of the parameters, from stage 2, and a shard of every batch, from
//! stage 3. Each device computes the gradients of its shard. An all-reduce adds up the gradients, and every device makes
//! the same update. The copies stay equal to the last bit.
//!
//! The results are the results of one device. The gradient of a sum is the sum of the gradients, and only the order of
//! some additions differs.
//!
//! | module | content |
//! | --- | --- |
//! | [`mod@train_batch`] | one step on k devices |
//! | [`mod@train`] | a whole run |
//! | [`replicas`] | compares the weights of the replicas |
//! | [`mod@evaluate`] | evaluates the test images on all devices |
//! | [`breakage`] | real bugs of the field, to be run on purpose |
//! | [`reproducible`] | a step with the same bits on any number of devices |
//! | [`fixed_tree`], [`tree_sum`] | a sum along a tree that does not depend on the number of ranks |
//! | [`variations`] | runs with these steps, and the choice between them |
//!
//! Stage 5 adds communication during the backward pass, and a wrapper around a model.

pub mod breakage;
mod error;
pub mod evaluate;
pub mod fixed_tree;
pub mod replicas;
pub mod reproducible;
pub mod train;
pub mod train_batch;
pub mod tree_sum;
pub mod variations;

pub use error::Error;
pub use fixed_tree::FixedTree;
pub use reproducible::{check_shards, train_batch_reproducible};
pub use train::train;
pub use train_batch::{allreduce_sums, train_batch};
pub use tree_sum::TreeSum;
pub use variations::Method;
