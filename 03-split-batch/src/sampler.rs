//! The samples of each rank in an epoch.
//!
//! All ranks compute the same shuffle, because it depends on the seed and the epoch alone. They cut the epoch into the same
//! global batches, and each rank takes its own shard of each batch, without a message. All ranks make the same number of
//! steps, and together they see the batches of a single device.

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
    /// Makes the sampler of `rank`. A batch of all ranks together has `global_batch` samples. All ranks pass the same values,
    /// except `rank`. Panics when `rank` is not below `world_size`, or `global_batch` is 0.
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

    /// Returns the samples of this rank in an epoch, step by step. If the last batch has fewer samples than there are ranks,
    /// the last step of some ranks is empty. These ranks still take part in the step.
    // ANCHOR: epoch
    pub fn epoch(&self, epoch: usize) -> impl Iterator<Item = Vec<u32>> + use<> {
        // All ranks have the same order.
        let (sampler, order) = (*self, epoch_order(self.samples, self.seed, epoch));
        (0..self.steps()).map(move |step| sampler.shard(&order, step).to_vec())
    }

    /// Cuts one batch from the order of an epoch, and returns this rank's shard of the batch.
    fn shard<'a>(&self, order: &'a [u32], step: usize) -> &'a [u32] {
        let batch = batch_of(order, self.global_batch, step);
        &batch[shard_range(batch.len(), self.world_size, self.rank)]
    }
}

/// Returns the samples of a rank in an epoch, step by step. Panics as [`Sampler::new`] does.
pub fn epoch_share(
    samples: usize,
    global_batch: usize,
    world_size: usize,
    rank: usize,
    seed: u64,
    epoch: usize,
) -> Vec<Vec<u32>> {
    Sampler::new(samples, global_batch, world_size, rank, seed).epoch(epoch).collect()
}
// ANCHOR_END: epoch

// ANCHOR: breakage
/// A mistake of a sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Breakage {
    /// Every rank shuffles with its own seed: some samples belong to several ranks, and some to none
    OwnShuffle,
    /// The shuffle ignores the epoch: every epoch has the same batches in the same order
    SameOrder,
    /// A last batch that is not full is dropped: no rank sees its samples in this epoch
    DropLast,
    /// A last batch that is not full is filled with samples from the start: these samples count twice
    FillUp,
}

impl Sampler {
    /// Returns the samples of this rank as [`epoch`](Self::epoch) does, but with a mistake.
    pub fn broken_epoch(&self, epoch: usize, breakage: Breakage) -> Vec<Vec<u32>> {
        match breakage {
            Breakage::OwnShuffle => {
                let seed = self.seed.wrapping_add(self.rank as u64);
                Self { seed, ..*self }.epoch(epoch).collect()
            }
            Breakage::SameOrder => self.epoch(0).collect(),
            Breakage::DropLast => {
                self.epoch(epoch).take(self.samples / self.global_batch).collect()
            }
            Breakage::FillUp => {
                let order = epoch_order(self.samples, self.seed, epoch);
                let full = self.steps() * self.global_batch;
                let filled_up: Vec<u32> = order.iter().copied().cycle().take(full).collect();
                (0..self.steps()).map(|step| self.shard(&filled_up, step).to_vec()).collect()
            }
        }
    }
}
// ANCHOR_END: breakage

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

    /// Counts how often each of ten samples occurs over all ranks, in batches of four.
    fn times(breakage: Option<Breakage>, ranks: usize, epoch: usize) -> [usize; 10] {
        let mut times = [0; 10];
        for rank in 0..ranks {
            let sampler = Sampler::new(10, 4, ranks, rank, 1);
            let share: Vec<Vec<u32>> = match breakage {
                Some(breakage) => sampler.broken_epoch(epoch, breakage),
                None => sampler.epoch(epoch).collect(),
            };
            share.iter().flatten().for_each(|&sample| times[sample as usize] += 1);
        }
        times
    }

    /// Counts the samples that occur never, once and twice.
    fn tally(breakage: Option<Breakage>, ranks: usize, epoch: usize) -> [usize; 3] {
        let times = times(breakage, ranks, epoch);
        [0, 1, 2].map(|many| times.iter().filter(|&&it| it == many).count())
    }

    #[test]
    fn each_is_wrong_in_its_own_way() {
        for ranks in [2, 3] {
            for epoch in [0, 1] {
                assert_eq!(tally(None, ranks, epoch), [0, 10, 0]);
                // Two samples are left after two batches of four.
                assert_eq!(tally(Some(Breakage::DropLast), ranks, epoch), [2, 8, 0]);
                assert_eq!(tally(Some(Breakage::FillUp), ranks, epoch), [0, 8, 2]);
                assert_eq!(tally(Some(Breakage::SameOrder), ranks, epoch), [0, 10, 0]);
                let [never, once, _] = tally(Some(Breakage::OwnShuffle), ranks, epoch);
                assert!(never > 0 && once < 10, "{ranks} ranks, epoch {epoch}");
            }
        }
        let sampler = Sampler::new(10, 4, 2, 0, 1);
        let epoch = |epoch| sampler.broken_epoch(epoch, Breakage::SameOrder);
        assert_eq!(epoch(0), epoch(1));
        assert_ne!(epoch(1), sampler.epoch(1).collect::<Vec<_>>());
    }

    #[test]
    fn a_rank_alone_shuffles_like_all() {
        let sampler = Sampler::new(10, 4, 1, 0, 1);
        let right: Vec<_> = sampler.epoch(1).collect();
        assert_eq!(sampler.broken_epoch(1, Breakage::OwnShuffle), right);
    }

    #[test]
    fn an_epoch_that_divides_evenly_has_nothing_to_drop_or_to_fill_up() {
        let sampler = Sampler::new(12, 4, 3, 1, 1);
        let right: Vec<_> = sampler.epoch(1).collect();
        assert_eq!(sampler.broken_epoch(1, Breakage::DropLast), right);
        assert_eq!(sampler.broken_epoch(1, Breakage::FillUp), right);
    }

    #[test]
    fn fewer_samples_than_a_batch_has() {
        let epoch = |breakage| Sampler::new(3, 8, 2, 0, 1).broken_epoch(0, breakage);
        assert!(epoch(Breakage::DropLast).is_empty());
        // Three samples fill a batch of eight, which is four samples for each rank.
        let filled = epoch(Breakage::FillUp).remove(0);
        assert_eq!((filled.len(), filled[0]), (4, filled[3]));
    }
}
