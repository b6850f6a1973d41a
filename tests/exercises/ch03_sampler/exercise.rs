//! Chapter 3, `book/src/ch03-split-batch.md`: each rank's share of an epoch.
//!
//! Check your answer: `cargo course check ch03_sampler`

use datasets::loader::epoch_order;
use split_batch::shard_range;

/// The samples that `rank` works on in an epoch, step by step.
///
/// `samples` samples are shuffled and cut into global batches of `global_batch`, over all ranks together;
/// the last one may be shorter. Of every global batch each of the `world_size` ranks takes its shard. Ten
/// samples, global batches of four, two ranks, in some order:
///
/// ```text
/// the epoch   7 2 9 4 | 0 5 1 8 | 3 6
/// rank 0      7 2     | 0 5     | 3
/// rank 1          9 4 |     1 8 |   6
/// ```
///
/// Ranks do not talk about this. Each computes its own share, and together the shares must hold every
/// sample exactly once, in as many steps on every rank, in every epoch in another order. A rank that gets
/// nothing of a short last batch has an empty step there.
///
/// At hand are `epoch_order(samples, seed, epoch)`, a shuffled `0..samples`, and the last exercise's rule:
/// `shard_range(samples, shards, shard)`, the range of one shard. Stage 3's `Sampler` is not to be used.
///
/// `rank` is below `world_size`, and `global_batch` is at least 1.
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
