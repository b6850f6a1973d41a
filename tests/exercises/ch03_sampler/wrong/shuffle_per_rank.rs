// expect: does rank 1 shuffle in another way than rank 0?

use datasets::loader::epoch_order;
use split_batch::shard_range;

/// A seed for every rank, so that "each rank sees other samples".
pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    epoch_order(samples, seed + rank as u64, epoch)
        .chunks(global_batch)
        .map(|batch| batch[shard_range(batch.len(), world_size, rank)].to_vec())
        .collect()
}
