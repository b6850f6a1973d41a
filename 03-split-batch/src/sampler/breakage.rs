//! Samplers with a common mistake. A run with such a sampler still trains.

use super::Sampler;

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
                let order = self.order(epoch);
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
