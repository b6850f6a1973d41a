// expect: step 2 has 4 samples, but 2 are left

use datasets::loader::epoch_order;
use split_batch::shard_range;

/// Fills the last batch up with the first samples, so that all shards are of one size.
pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    let order = epoch_order(samples, seed, epoch);
    let steps = samples.div_ceil(global_batch);
    let padded: Vec<u32> = order.iter().copied().cycle().take(steps * global_batch).collect();
    padded
        .chunks(global_batch)
        .map(|batch| batch[shard_range(batch.len(), world_size, rank)].to_vec())
        .collect()
}
