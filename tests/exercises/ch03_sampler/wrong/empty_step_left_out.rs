// expect: rank 2 makes 2 steps, rank 0 makes 3

use datasets::loader::epoch_order;
use split_batch::shard_range;

/// A rank with nothing to do stays away, and the others wait for it at the all-reduce.
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
        .map(|batch| batch[shard_range(batch.len(), world_size, rank)].to_vec())
        .filter(|share| !share.is_empty())
        .collect()
}
