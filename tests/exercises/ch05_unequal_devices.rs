//! Chapter 5, `book/src/ch05d-your-model.md`: a fast device and a slow one.
//!
//! Check your answer: `cargo course check ch05_unequal_devices`

use candle_core::bail;
use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::speed::{Speed, step_seconds};
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;

/// The number of samples of a batch for each device, with the shortest possible step.
///
/// A device needs `seconds(n)` = fixed + n · per_sample for n samples, and no time for 0 samples. The step takes as long as its
/// slowest device: `step_seconds(devices, shares)`. The all-reduce takes the same time for all shares, and is left out. An
/// example with 1 s and 3 s per sample, no fixed time, and a batch of 8:
///
/// ```text
/// shares 4 + 4    12 s   the fast device waits 8 s
/// shares 8 + 0     8 s   the fast device alone
/// shares 6 + 2     6 s   no device waits
/// ```
///
/// Shares are whole numbers, one for each device in order, and add up to `batch`. No other shares make the step shorter. If
/// several shares are best, return any of them. A device that only slows the step down gets 0.
///
/// Fails with a reason when there are no devices, when a time is negative, infinite or NaN, and when `per_sample` is 0, even if the
/// batch is empty.
pub fn shares(batch: usize, devices: &[Speed]) -> candle_core::Result<Vec<usize>> {
    // TODO: which device takes the next sample? And below, a step with these shares.
    todo!("the shares of the devices")
}

/// One step on this rank's device: the update that *one* device makes with the whole batch.
///
/// All ranks call this together, with the same batch (images `[B, 1, 28, 28]`, labels `[B]`), equal models,
/// and the same shares: one for each rank, B in total. Rank 0 works on the first `shares[0]` samples, rank 1 on
/// the next `shares[1]` samples, and so on. A share may be 0: `model.gradients(&shard)` accepts an empty shard, and returns
/// `sums` and `gradients`. `sgd` takes `model.parameters()`.
///
/// parameter −= rate · summed gradient / B, on every rank the same, to the last bit. Returns loss, correct
/// answers and samples of this rank's own shard, as they were before the update: the `sums` that
/// `model.gradients` gives.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn step(
    rank: &impl Communicator,
    model: &Classifier,
    batch: &Batch,
    shares: &[usize],
    learning_rate: f64,
) -> Result<BatchSums, Error> {
    // This rank's shard, its gradients, their sum over all ranks, the update.
    todo!("a step with unequal shares")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch05_unequal_devices, Answer { shares, step }, run);
