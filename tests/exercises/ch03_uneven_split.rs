//! Chapter 3, `book/src/ch03-split-batch.md`: a batch that does not divide evenly.
//!
//! Check your answer: `cargo course check ch03_uneven_split`

use candle_core::{Result, Tensor};

/// Cuts images and labels into the same shards: `[B, …]` and `[B]` → a pair of each for every shard.
///
/// Every sample is in exactly one shard, and its label is in the same place of the same shard. Shards are
/// runs of samples in order, and their sizes differ by at most one. If B does not divide evenly, the first
/// shards hold one sample more than the last. Ten samples in four shards:
///
/// ```text
/// 0 1 2 | 3 4 5 | 6 7 | 8 9
/// ```
///
/// The result has `shards` shards. If there are fewer samples, the last shards are empty.
///
/// `Tensor::narrow(0, start, len)` is a view of `len` samples from `start` on. Write the rule down yourself: do not call
/// `shard_range` and `chunk_range` of stages 2 and 3, or stage 3's `cut_shard` and `split_batch`.
///
/// Fails when there are no shards, or not as many labels as images.
pub fn split_batch(
    images: &Tensor,
    labels: &Tensor,
    shards: usize,
) -> Result<Vec<(Tensor, Tensor)>> {
    // TODO: where does each shard start, and how many samples does it hold?
    todo!("the shards of a batch")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch03_uneven_split, split_batch);
