// expect: law: samples are numbered from 0

use datasets::loader::epoch_order;
use split_batch::shard_range;

/// Counts samples from 1.
pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    epoch_order(samples, seed, epoch)
        .chunks(global_batch)
        .map(|batch| {
            batch[shard_range(batch.len(), world_size, rank)].iter().map(|s| s + 1).collect()
        })
        .collect()
}
