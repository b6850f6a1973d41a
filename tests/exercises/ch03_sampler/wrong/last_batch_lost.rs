// expect: no rank has samples 1 3

use datasets::loader::epoch_order;
use split_batch::shard_range;

/// Only whole batches: the last samples of every epoch are not trained on.
pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    epoch_order(samples, seed, epoch)
        .chunks_exact(global_batch)
        .map(|batch| batch[shard_range(batch.len(), world_size, rank)].to_vec())
        .collect()
}
