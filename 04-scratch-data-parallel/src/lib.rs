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
//! | [`fixed_tree`] | a sum along a tree that does not depend on the number of ranks |
//! | [`variations`] | runs with these steps, and the choice between them |

pub mod breakage;
pub mod evaluate;
pub mod fixed_tree;
pub mod replicas;
pub mod reproducible;
pub mod train;
pub mod train_batch;
pub mod variations;

pub use fixed_tree::{FixedTree, TreeSum};
pub use reproducible::{check_shards, train_batch_reproducible};
pub use train::train;
pub use train_batch::{allreduce_sums, train_batch};
pub use variations::Method;

/// The reason why a rank stopped training.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// Another rank ended, sent nothing in time, or made another call.
    #[error(transparent)]
    Communication(#[from] params_and_allreduce::communicator::Error),
    /// The training loop stopped.
    #[error(transparent)]
    Train(#[from] trainer::Error),
    /// Two replicas have different weights.
    #[error(transparent)]
    ReplicasDiffer(#[from] replicas::Differs),
}
