// expect: step 0 is made of samples 0 3 5 6, on one device of 0 1 2 6

use datasets::loader::epoch_order;
use split_batch::shard_range;

/// The epoch is cut into one part a rank, and each part into steps.
pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    let order = epoch_order(samples, seed, epoch);
    let part = &order[shard_range(samples, world_size, rank)];
    let steps = samples.div_ceil(global_batch);
    (0..steps).map(|step| part[shard_range(part.len(), steps, step)].to_vec()).collect()
}
