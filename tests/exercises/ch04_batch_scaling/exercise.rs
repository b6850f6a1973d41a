//! Chapter 4, `book/src/ch04-data-parallel.md`: k devices, a batch k times as large.
//!
//! Check your answer: `cargo course check ch04_batch_scaling`

use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::scaling::{RateRule, Tuned};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Step number `step` of an epoch, on k devices that work on `tuned.batch_size` samples *each*.
///
/// All k ranks call this together, with the same `epoch` (all its samples, shuffled: images
/// `[N, 1, 28, 28]`, labels `[N]`) and equal models. With b = `tuned.batch_size`:
///
/// - the global batch holds k·b samples: step 0 takes the first k·b of the epoch, step 1 the next, and so
///   on. The last batch of an epoch may be shorter;
/// - each rank computes the gradients of its shard (`model.gradients`, sums over the shard's samples);
/// - all ranks make the same update: parameter −= rate · summed gradient / samples in the global batch;
/// - the rate is `tuned.learning_rate` with `RateRule::Keep`, and k times that with `RateRule::Linear`, in
///   a short last batch as well.
///
/// The result is what *one* device does with a batch of k·b.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn scaled_step(
    rank: &impl Communicator,
    model: &Classifier,
    epoch: &Batch,
    step: usize,
    tuned: Tuned,
    rule: RateRule,
) -> Result<(), Error> {
    // TODO: the global batch, this rank's shard, its gradients, their sum over all ranks, the update.
    todo!("a step on k devices")
}
