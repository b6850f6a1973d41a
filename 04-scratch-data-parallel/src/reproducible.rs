//! A training step with the same bits on any number of devices.
//!
//! [`train_batch`](crate::train_batch()) gives the numbers of one device up to rounding, which training amplifies. In this
//! module, a batch always has S shards, and each device works on its shards one by one. A [`FixedTree`] decides the order in
//! which their gradients are added. The price: smaller matrix products, and an order of messages that may not suit the
//! machine.

// ANCHOR: imports
use harness::cli::UsageError;
use harness::records::BatchSums;
use params_and_allreduce::communicator::{self, Communicator};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::LocalBatch;
use trainer::{sums_from_tensor, sums_to_tensor};

use crate::{Error, FixedTree, TreeSum};
// ANCHOR_END: imports

// ANCHOR: check_shards
/// Checks that each device gets a shard, and that a batch can be cut into so many shards. Fails when they do not: the error
/// names both numbers.
pub fn check_shards(shards: usize, devices: usize, batch_size: usize) -> Result<(), UsageError> {
    if shards < devices {
        return Err(UsageError::new(format_args!(
            "--shards {shards}: {shards} shards cannot be shared out over {devices} devices; use --shards {devices} or more"
        )));
    }
    if batch_size < shards {
        return Err(UsageError::new(format_args!(
            "--shards {shards}: batch size {batch_size} cannot be cut into {shards} shards; use --shards {batch_size} or fewer"
        )));
    }
    Ok(())
}
// ANCHOR_END: check_shards

/// Makes one training step on this rank's device, over the shards that the rank holds in the tree. All ranks call it
/// together.
///
/// The results are as in [`train_batch`](crate::train_batch()). Fails when the tree has another number of shards, a shard
/// does not fit the model, or communication fails.
// ANCHOR: reproducible
pub fn train_batch_reproducible(
    rank: &(impl Communicator + ?Sized),
    model: &Lenet,
    batch: &LocalBatch,
    learning_rate: f64,
    tree: &FixedTree,
) -> Result<Step, Error> {
    let (mut sum, mut local_sums) = (TreeSum::new(*tree), Vec::new());
    let first = tree.held_by(rank.rank()).start;
    for (number, shard) in batch.shards.iter().enumerate() {
        let step = local_gradients(model, &shard.to_device(rank.device())?)?;
        sum.add(first + number, step.gradients)?;
        local_sums.push(step.sums);
    }
    let gradients = sum.total(rank)?;
    sgd(model.parameters(), &gradients, learning_rate, batch.samples)?;
    Ok(Step { sums: tree_sums(rank, &local_sums, tree)?, gradients })
}
// ANCHOR_END: reproducible

// ANCHOR: tree_sums
/// Adds up loss, correct answers, samples and interrupts of all shards along the tree. `sums` are the sums of this rank's
/// shards, in order. Fails when communication fails.
pub fn tree_sums(
    rank: &(impl Communicator + ?Sized),
    sums: &[BatchSums],
    tree: &FixedTree,
) -> Result<BatchSums, communicator::Error> {
    let leaves = sums.iter().map(|sums| sums_to_tensor(sums, rank.device()));
    let total = tree.sum(rank, &leaves.collect::<candle_core::Result<Vec<_>>>()?)?;
    Ok(sums_from_tensor(&total)?)
}
// ANCHOR_END: tree_sums
