//! Chapter 5, `book/src/ch05-concise-wrapper.md`: a fast device and a slow one.
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

/// How many samples of a batch each device works on, so that the step ends as soon as it can.
///
/// A device needs `seconds(n)` = fixed + n · per_sample for n samples, and no time at all for none. The step
/// takes as long as the slowest of them: `step_seconds(devices, shares)`. (The all-reduce takes the same time
/// whatever the shares are, and is left out.) For 1 s and 3 s per sample, nothing fixed, and a batch of 8:
///
/// ```text
/// shares 4 + 4    12 s   the fast one waits 8 s
/// shares 8 + 0     8 s   the fast one alone
/// shares 6 + 2     6 s   nobody waits
/// ```
///
/// Shares are whole numbers, one for each device in order, and add up to `batch`. No others make the step
/// shorter; of several that are best, any will do. So a device that would only hold up the others gets 0.
///
/// Fails when there are no devices; when a time is not a number of 0 or more (NaN, infinite, negative); and when
/// `per_sample` is 0, for then somebody has not measured it. All that for an empty batch as well.
pub fn shares(batch: usize, devices: &[Speed]) -> candle_core::Result<Vec<usize>> {
    // TODO: who takes how many, if all are to be done early? And below, a step with these shares.
    todo!("the shares of the devices")
}

/// One step on this rank's device: the update that *one* device makes with the whole batch.
///
/// All ranks call this together, with the same batch (images `[B, 1, 28, 28]`, labels `[B]`), equal models,
/// and the same shares: one for each rank, B in all. Rank 0 works on the first `shares[0]` samples, rank 1 on
/// the `shares[1]` samples behind them, and so on. A share may be 0; `model.gradients` takes an empty shard.
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
