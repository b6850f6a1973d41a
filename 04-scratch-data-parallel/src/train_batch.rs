//! One step of data-parallel training.

// ANCHOR: imports
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, Communicator};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::LocalBatch;
use trainer::{sums_from_tensor, sums_to_tensor};

use crate::Error;
// ANCHOR_END: imports

/// Makes one training step on this rank's device. All ranks call it together, each with its own part of the batch.
///
/// The function returns the sums of loss and correct answers over the whole batch, and the gradients of the update. Both are
/// the same on every rank. Fails when the shard does not fit the model, or communication fails.
// ANCHOR: train_batch
pub fn train_batch(
    rank: &(impl Communicator + ?Sized),
    model: &Lenet,
    batch: &LocalBatch,
    learning_rate: f64,
    algorithm: Algorithm,
) -> Result<Step, Error> {
    let local = local_gradients(model, &batch.shards[0].to_device(rank.device())?)?;
    // Data parallelism: sums over the shard become sums over the batch.
    let mut gradients = Vec::new();
    for gradient in &local.gradients {
        gradients.push(rank.all_reduce(gradient, algorithm)?);
    }
    // The only division is by the size of the whole batch. Every rank makes the same update.
    sgd(model.parameters(), &gradients, learning_rate, batch.samples)?;
    Ok(Step { sums: allreduce_sums(rank, local.sums, algorithm)?, gradients })
}
// ANCHOR_END: train_batch

// ANCHOR: allreduce
/// Adds up loss, correct answers, samples and interrupts over the shards of all ranks. Every rank gets the same sums. Fails
/// when communication fails.
pub fn allreduce_sums(
    rank: &(impl Communicator + ?Sized),
    sums: BatchSums,
    algorithm: Algorithm,
) -> Result<BatchSums, communicator::Error> {
    let total = rank.all_reduce(&sums_to_tensor(&sums, rank.device())?, algorithm)?;
    Ok(sums_from_tensor(&total)?)
}
// ANCHOR_END: allreduce
