//! Exercise: each rank's share of an epoch.
//!
//! Chapter: book/src/ch03-split-batch.md
//! Check: cargo test --release -p exercises --test ch03_sampler

use single_gpu::data::loader::epoch_order;
use split_batch::shard_range;

/// The samples that `rank` works on in an epoch, step by step.
pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    // The same on every rank: rank decides only what is taken of it.
    let order = epoch_order(samples, seed, epoch);
    order
        .chunks(global_batch)
        .map(|batch| batch[shard_range(batch.len(), world_size, rank)].to_vec())
        .collect()
}
