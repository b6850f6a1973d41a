//! Shuffle and batches are everybody's. The rank decides only which shard of each batch is taken.

use datasets::loader::epoch_order;
use split_batch::shard_range;

pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    let order = epoch_order(samples, seed, epoch);
    order
        .chunks(global_batch)
        .map(|batch| batch[shard_range(batch.len(), world_size, rank)].to_vec())
        .collect()
}

exercises::check!(ch03_sampler, epoch_share, run);
