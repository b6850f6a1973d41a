//! Chapter 4, `book/src/ch04-data-parallel.md`: one training step on k devices.
//!
//! Check your answer: `cargo course check ch04_train_batch`

use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator;
use scratch_data_parallel::{Error, allreduce_sums};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::LocalBatch;

/// Makes one training step on this rank's device. All ranks call this function together, each with its own shard of the batch.
///
/// | name | what |
/// | --- | --- |
/// | `model` | the replica of this rank; all replicas are equal before the step |
/// | `batch` | `shards[0]` is the shard of this rank, and may be empty; `samples` counts the samples of all shards |
/// | `learning_rate` | of one device, with a batch of `samples` |
/// | `algorithm` | of every all-reduce |
/// | result | loss and correct answers of the whole batch before the update, and its gradients, summed over its samples |
///
/// k devices equal one: the result and the new parameters are those of one device with the whole batch, up to rounding. They
/// have the same bits on every rank. Each number is sent in one all-reduce only.
///
/// You need five functions. `Batch::to_device` copies the shard to `rank.device()`. [`local_gradients`] returns the sums over a
/// shard, as `Step { sums, gradients }` with one gradient for each parameter. [`Communicator::all_reduce`] adds up one tensor over the ranks, [`sgd`] makes the update, and [`allreduce_sums`] adds up
/// loss and correct answers.
///
/// Fails when the shard does not fit the model, or another rank stops or stalls.
pub fn train_batch(
    rank: &impl Communicator,
    model: &Lenet,
    batch: &LocalBatch,
    learning_rate: f64,
    algorithm: Algorithm,
) -> Result<Step, Error> {
    // TODO: the gradients of the shard, then the gradients of the batch, then the update.
    todo!("a training step on k devices")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch04_train_batch, train_batch, run);
