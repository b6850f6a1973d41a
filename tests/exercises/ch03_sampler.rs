//! Chapter 3, `book/src/ch03-split-batch.md`: each rank's share of an epoch.
//!
//! Check your answer: `cargo course check ch03_sampler`

use datasets::loader::epoch_order;
use split_batch::shard_range;

/// The samples that `rank` works on in an epoch, step by step.
///
/// `samples` samples are shuffled and cut into global batches of `global_batch`, over all ranks together;
/// the last batch may be shorter. Each of the `world_size` ranks takes its shard of every global batch. Ten
/// samples, global batches of four, two ranks, in some order:
///
/// ```text
/// the epoch   7 2 9 4 | 0 5 1 8 | 3 6
/// rank 0      7 2     | 0 5     | 3
/// rank 1          9 4 |     1 8 |   6
/// ```
///
/// Ranks send no messages for this. Each rank computes its own share. Together the shares hold every sample exactly once. All
/// ranks have the same number of steps, and every epoch has another order. A rank without samples of a short last batch has an
/// empty step there.
///
/// `epoch_order(samples, seed, epoch)` returns the order of the epoch, a shuffled `0..samples`. `shard_range(samples, shards, shard)` returns the range of
/// one shard by chapter 3's rule for cutting. Do not use stage 3's `Sampler`.
///
/// `rank` is below `world_size`, and `global_batch` is at least 1. An epoch of 0 samples has no step.
pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    // TODO: cut the epoch into global batches, and take this rank's shard of each.
    todo!("the samples of a rank, step by step")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch03_sampler, epoch_share, run);
