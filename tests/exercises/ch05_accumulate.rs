//! Chapter 5, `book/src/ch05d-your-model.md`: gradient accumulation without synchronising.
//!
//! Check your answer: `cargo course check ch05_accumulate`

use candle_core::Tensor;
use datasets::Batch;
use exercises::classifier::Classifier;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Trains on micro-batches, with one update for every `per_update` of them.
///
/// A batch that does not fit into memory is processed in parts. All k ranks call this together, with the same
/// `micro_batches` (images `[Bₘ, 1, 28, 28]`, labels `[Bₘ]`) and equal models. Each rank takes
/// its shard of every micro-batch, as `split_batch` cuts it. An example with `per_update` = 3 and five micro-batches:
///
/// ```text
/// micro-batch    0     1     2     3     4
/// each rank      sum   sum   sum   sum   sum        no messages here
/// all ranks                  all-reduce  all-reduce
///                            update      update     the last group may be shorter
/// ```
///
/// - An update is the update of *one* device with all samples of the micro-batches in one batch:
///   parameter −= `learning_rate` · summed gradient / samples, over all its micro-batches on all ranks. It is the
///   same on every rank, to the last bit.
/// - For every update, ranks send as many messages and bytes as with a single micro-batch.
///
/// `model.gradients(&batch)?.gradients` are sums over a shard's samples, and zeros for an empty shard. `sgd` takes
/// `model.parameters()`. Micro-batches differ in
/// size: one may have fewer samples than there are ranks, or none at all. Every update has at least one sample,
/// and `per_update` is at least 1.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn train(
    rank: &impl Communicator,
    model: &Classifier,
    micro_batches: &[Batch],
    per_update: usize,
    learning_rate: f64,
) -> Result<(), Error> {
    // TODO: for every update, sum gradients over the micro-batches, then over the ranks; then divide once.
    todo!("one update for every group of micro-batches")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch05_accumulate, train, run);
