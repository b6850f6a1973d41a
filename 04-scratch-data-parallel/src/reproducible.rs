//! One step whose bits do not depend on the number of devices.
//!
//! k devices give the numbers of one up to rounding, and training amplifies rounding: after ten epochs
//! the last digit has become a different model. Here the batch is cut into S shards, and S stays the same
//! whatever the number of devices. Each device works through the shards that it hosts, one at a time, and
//! never joins two, so every operation sees the same numbers wherever it runs. The gradients of the
//! shards are added up along one fixed tree ([`FixedTree`]). The same operations on the same operands
//! in the same order: the same bits, on one device or on eight.
//!
//! What it costs: smaller products (a device with four shards multiplies four times as often, with a
//! quarter of the rows), and messages in an order that suits the tree instead of the machine.

use datasets::Batch;
use harness::cli::UsageError;
use harness::records::BatchSums;
use params_and_allreduce::communicator::{self, Communicator};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use trainer::{sums_from_tensor, sums_to_tensor};

use crate::train_batch::cut_shard;
use crate::{Error, FixedTree, TreeSum};

/// Refuses a number of shards that cannot be shared out over `devices`, or that batches cannot be cut into.
///
/// # Errors
///
/// A [`UsageError`] that names both numbers.
pub fn check_shards(shards: usize, devices: usize, batch_size: u64) -> Result<(), UsageError> {
    if shards < devices {
        return Err(UsageError::new(format_args!(
            "{shards} shards cannot be shared out over {devices} devices: each needs at least one"
        )));
    }
    if batch_size < shards as u64 {
        return Err(UsageError::new(format_args!(
            "batch size {batch_size} cannot be cut into {shards} shards: each needs at least one sample"
        )));
    }
    Ok(())
}

/// One step on this rank's device, over the shards that it hosts; all ranks call it together, with the
/// same batch and the same number of shards, at least one for each rank.
///
/// What comes back is about the whole batch and the same on every rank, as with
/// [`train_batch`](crate::train_batch()).
///
/// # Errors
///
/// When there are fewer shards than ranks, when the batch does not fit the model, or when another rank
/// stops or stalls.
pub fn train_batch_reproducible(
    rank: &(impl Communicator + ?Sized),
    model: &Lenet,
    batch: &Batch,
    learning_rate: f64,
    shards: usize,
) -> Result<Step, Error> {
    // ANCHOR: reproducible
    let tree = FixedTree::new(shards, rank.world_size())?;
    let (mut sum, mut sums) = (TreeSum::new(tree), Vec::new());
    for index in tree.held_by(rank.rank()) {
        let shard = cut_shard(batch, shards, index, rank.device())?;
        let step = local_gradients(model, &shard)?;
        sum.add(index, step.gradients)?;
        sums.push(step.sums);
    }
    let gradients = sum.total(rank)?;
    sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
    // ANCHOR_END: reproducible

    Ok(Step { sums: tree_sums(rank, &sums, &tree)?, gradients })
}

/// Loss, correct answers, samples and interrupts of all shards together, along the tree, of which this rank holds `sums`.
///
/// # Errors
///
/// When another rank stops or stalls.
pub fn tree_sums(
    rank: &(impl Communicator + ?Sized),
    sums: &[BatchSums],
    tree: &FixedTree,
) -> Result<BatchSums, communicator::Error> {
    let leaves = sums.iter().map(|sums| sums_to_tensor(sums, rank.device()));
    let total = tree.sum(rank, &leaves.collect::<candle_core::Result<Vec<_>>>()?)?;
    Ok(sums_from_tensor(&total)?)
}
