//! The samples of each rank in an epoch.
//!
//! All ranks compute the same shuffle, because it depends on the seed and the epoch alone. They cut the epoch into the same
//! global batches, and each rank takes its own shard of each batch. The ranks exchange no messages. An example with ten
//! samples, global batches of four and two ranks:
//!
//! ```text
//! the epoch   7 2 9 4 | 0 5 1 8 | 3 6
//! rank 0      7 2     | 0 5     | 3
//! rank 1          9 4 |     1 8 |   6
//! ```
//!
//! In every epoch, each sample belongs to one step of one rank. All ranks make the same number of steps, so no rank waits
//! in an all-reduce for a rank that has finished. The short last batch is cut like every other batch: no sample is dropped,
//! and no sample is repeated. All ranks together see the batches of a single device.

pub mod breakage;

use datasets::loader::{batch_of, epoch_order};

use crate::shard_range;

// ANCHOR: sampler
/// The samples of one rank in every epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
}

impl Sampler {
    /// Makes the sampler of `rank`. A batch of all ranks together has `global_batch` samples.
    ///
    /// All ranks pass the same values, except `rank`. Panics when `rank` is not below `world_size`, or `global_batch` is 0.
    pub fn new(
        samples: usize,
        global_batch: usize,
        world_size: usize,
        rank: usize,
        seed: u64,
    ) -> Self {
        assert!(rank < world_size, "rank {rank} of {world_size}");
        assert!(global_batch > 0, "a batch has at least one sample");
        Self { samples, global_batch, world_size, rank, seed }
    }

    /// Returns the number of steps in an epoch. It is the same on every rank.
    pub fn steps(&self) -> usize {
        self.samples.div_ceil(self.global_batch)
    }
    // ANCHOR_END: sampler

    /// Returns the samples of this rank in an epoch, step by step.
    ///
    /// If the last batch has fewer samples than there are ranks, the last step of some ranks is empty. These ranks still
    /// take part in the step.
    // ANCHOR: epoch
    pub fn epoch(&self, epoch: usize) -> impl Iterator<Item = Vec<u32>> + use<> {
        let (sampler, order) = (*self, self.order(epoch));
        (0..self.steps()).map(move |step| sampler.shard(&order, step).to_vec())
    }

    /// Returns all samples in the order of an epoch. The order is the same on every rank.
    pub(crate) fn order(&self, epoch: usize) -> Vec<u32> {
        epoch_order(self.samples, self.seed, epoch)
    }

    /// Cuts one batch from the order of an epoch, and returns this rank's shard of the batch.
    pub(crate) fn shard<'a>(&self, order: &'a [u32], step: usize) -> &'a [u32] {
        let batch = batch_of(order, self.global_batch, step);
        &batch[shard_range(batch.len(), self.world_size, self.rank)]
    }
    // ANCHOR_END: epoch
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the samples of every rank in an epoch, step by step.
    fn shares(samples: usize, batch: usize, ranks: usize, epoch: usize) -> Vec<Vec<Vec<u32>>> {
        let share = |rank| Sampler::new(samples, batch, ranks, rank, 5).epoch(epoch).collect();
        (0..ranks).map(share).collect()
    }

    #[test]
    fn every_sample_exactly_once_an_epoch_over_all_ranks() {
        for (samples, batch) in [(10, 4), (1, 1), (100, 7), (64, 16), (5, 8), (33, 32)] {
            for ranks in [1, 2, 3, 4, 7] {
                for epoch in [0, 1] {
                    let shares = shares(samples, batch, ranks, epoch);
                    let mut seen: Vec<u32> = shares.iter().flatten().flatten().copied().collect();
                    seen.sort_unstable();
                    let all: Vec<u32> = (0..samples as u32).collect();
                    assert_eq!(seen, all, "{samples} in batches of {batch} on {ranks} ranks");
                    assert!(shares.iter().all(|share| share.len() == samples.div_ceil(batch)));
                }
            }
        }
    }

    #[test]
    fn all_ranks_together_see_the_batches_of_one() {
        let alone = shares(50, 8, 1, 3).remove(0);
        let together = shares(50, 8, 3, 3);
        for (step, batch) in alone.iter().enumerate() {
            let joined: Vec<u32> =
                together.iter().flat_map(|share| share[step].iter().copied()).collect();
            assert_eq!(&joined, batch, "step {step}");
        }
    }

    #[test]
    fn a_new_shuffle_each_epoch() {
        assert_ne!(shares(50, 8, 2, 0), shares(50, 8, 2, 1));
        assert_eq!(shares(50, 8, 2, 1), shares(50, 8, 2, 1));
    }

    #[test]
    fn shards_of_a_step_differ_by_at_most_one_sample() {
        let shares = shares(50, 8, 3, 0);
        for step in 0..shares[0].len() {
            let sizes = shares.iter().map(|share| share[step].len());
            let (least, most) = (sizes.clone().min().unwrap(), sizes.clone().max().unwrap());
            assert!(most - least <= 1, "step {step}: {:?}", sizes.collect::<Vec<_>>());
        }
    }
}
