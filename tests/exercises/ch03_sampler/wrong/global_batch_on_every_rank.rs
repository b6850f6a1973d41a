// expect: an epoch is 1 steps long, on one device 2

use datasets::loader::epoch_order;
use split_batch::shard_range;

/// Takes the global batch for the share of one rank: batches are k times too large.
pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    epoch_order(samples, seed, epoch)
        .chunks(global_batch * world_size)
        .map(|batch| batch[shard_range(batch.len(), world_size, rank)].to_vec())
        .collect()
}
