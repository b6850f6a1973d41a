//! Chapter 3, `book/src/ch03-split-batch.md`: each rank's share of an epoch.
//!
//! The check tests each law of a sampler in turn, and compares the shares with those of stage 3. The message names the first
//! broken law.

use crate::prelude::*;
use split_batch::epoch_share;

/// Samples, global batch, world size, rank, seed and epoch; the samples of the rank, step by step.
pub type Answer = fn(usize, usize, usize, usize, u64, usize) -> Vec<Vec<u32>>;

pub const LAWS: &[Law<Answer>] = laws![ranks_share_every_epoch_out in epochs()];

const NUMBERED: &str = "samples are numbered from 0, and an epoch has no others";

/// Every rank's share of an epoch: rank, step, sample.
type Shares = Vec<Vec<Vec<u32>>>;

#[derive(Clone, Copy)]
struct Epoch {
    samples: usize,
    global_batch: usize,
    world_size: usize,
    seed: u64,
    epoch: usize,
}

/// Samples and global batches: even, with a short last batch, with empty shards, and without any sample.
const SIZES: [(usize, usize); 9] =
    [(8, 4), (10, 4), (9, 4), (7, 3), (3, 8), (64, 16), (50, 7), (300, 32), (0, 4)];

fn epochs() -> impl Iterator<Item = Epoch> {
    let sizes = SIZES.into_iter().flat_map(|size| [2, 1, 3, 4].map(|ranks| (size, ranks)));
    sizes.flat_map(|((samples, global_batch), world_size)| {
        let of = |(seed, epoch)| Epoch { samples, global_batch, world_size, seed, epoch };
        [(5, 0), (5, 1), (6, 0), (u64::MAX, 3)].map(of)
    })
}

shown!(Epoch { samples, global_batch, world_size, seed, epoch } =>
    "{samples} samples, global batches of {global_batch}, world size {world_size}, seed {seed}, epoch {epoch}");

impl Epoch {
    fn shares(self, sampler: Answer) -> Shares {
        let Self { samples, global_batch, world_size, seed, epoch } = self;
        let share = |rank| sampler(samples, global_batch, world_size, rank, seed, epoch);
        (0..world_size).map(share).collect()
    }

    /// Demands that something holds, and shows the right shares and those that were found.
    fn demand(self, right: bool, what: String, found: &Shares, law: &str) -> Outcome {
        let expected = || drawn(&self.shares(epoch_share));
        demand(right, || Finding::new(what).expected(expected(), drawn(found)).law(law))
    }

    fn all_ranks_make_the_same_steps(self, found: &Shares) -> Outcome {
        let law = "in every step all ranks meet at an all-reduce, even one with nothing to add";
        let steps = found[0].len();
        found.iter().enumerate().try_for_each(|(rank, share)| {
            let what = format!("rank {rank} makes {} steps, rank 0 makes {steps}", share.len());
            self.demand(share.len() == steps, what, found, law)
        })
    }

    fn every_sample_once(self, found: &Shares) -> Outcome {
        let law = "every sample is in one place: all ranks shuffle alike and take different shares";
        let mut places = vec![Vec::new(); self.samples];
        for (rank, share) in found.iter().enumerate() {
            let shards = share.iter().enumerate();
            for (step, &sample) in shards.flat_map(|(step, it)| it.iter().map(move |it| (step, it)))
            {
                let (what, law) = (format!("there is no sample {sample}"), NUMBERED);
                self.demand((sample as usize) < self.samples, what, found, law)?;
                let places = &mut places[sample as usize];
                places.push(format!("on rank {rank} in step {step}"));
            }
        }
        if let Some((sample, places)) = (0..).zip(&places).find(|(_, places)| places.len() > 1) {
            let why = self.why_twice(found);
            let what = format!("sample {sample} is {} and {}{why}", places[0], places[1]);
            self.demand(false, what, found, law)?;
        }
        let lost = (0..).zip(&places).filter(|(_, places)| places.is_empty());
        let lost: Vec<u32> = lost.map(|(sample, _)| sample).collect();
        let what = format!("no rank has samples {}", in_a_row(&lost));
        self.demand(lost.is_empty(), what, found, "every sample is trained on in every epoch")
    }

    /// The reason for a sample that comes twice, if it explains all shares.
    fn why_twice(self, found: &Shares) -> String {
        if found.iter().all(|share| *share == found[0]) {
            return ": all ranks have the same share".to_owned();
        }
        let own = |rank: usize, times: u64| {
            let seed = self.seed.wrapping_add(times * rank as u64);
            Self { seed, ..self }.shares(epoch_share).swap_remove(rank)
        };
        if (1..=16).any(|times| (0..found.len()).all(|rank| found[rank] == own(rank, times))) {
            return ": every rank shuffles with its own seed".to_owned();
        }
        let left = (0..self.samples).step_by(self.global_batch);
        let sizes = left.map(|first| self.global_batch.min(self.samples - first)).enumerate();
        let of_step = |step| found.iter().map(|share| share.get(step).map_or(0, Vec::len)).sum();
        let mut sizes = sizes.map(|(step, size)| (step, size, of_step(step)));
        let more = sizes.find(|&(_, size, together): &(_, _, usize)| together > size);
        more.map_or(String::new(), |(step, size, together)| {
            format!(": step {step} has {together} samples, but {size} are left")
        })
    }

    fn the_order_is_the_epochs(self, found: &Shares) -> Outcome {
        let law = "a new shuffle each epoch, that only seed and epoch decide";
        let is_of = |seed, epoch| *found == Self { seed, epoch, ..self }.shares(epoch_share);
        let seeds = [self.seed, 0, 1, 5, 6, self.seed.wrapping_add(1), self.seed.wrapping_add(3)];
        let mut orders = seeds.iter().flat_map(|&seed| (0..5).map(move |epoch| (seed, epoch)));
        let other = orders.find(|&(seed, epoch)| is_of(seed, epoch));
        let Some((seed, epoch)) = other.filter(|_| !is_of(self.seed, self.epoch)) else {
            return Ok(());
        };
        let what = match (seed == self.seed, epoch == self.epoch) {
            (true, _) => format!("epoch {} comes in the order of epoch {epoch}", self.epoch),
            (_, true) => format!("seed {} gives the order of seed {seed}", self.seed),
            _ => format!("the order is that of seed {seed} and epoch {epoch}"),
        };
        self.demand(false, what, found, law)
    }

    fn batches_are_those_of_one_device(self, found: &Shares) -> Outcome {
        let law = "k devices equal one: the batches of one device, each cut into shards";
        let alone = Self { world_size: 1, ..self }.shares(epoch_share).swap_remove(0);
        let (steps, right) = (found[0].len(), alone.len());
        let what = format!("an epoch is {steps} steps long, on one device {right}");
        self.demand(steps == right, what, found, law)?;
        alone.into_iter().enumerate().try_for_each(|(step, batch)| {
            let together = found.iter().flat_map(|share| share[step].iter().copied());
            let [together, batch] = [together.collect(), batch].map(|mut samples: Vec<u32>| {
                samples.sort_unstable();
                samples
            });
            let (made, of) = (in_a_row(&together), in_a_row(&batch));
            let what = format!("step {step} is made of samples {made}, on one device of {of}");
            self.demand(together == batch, what, found, law)
        })
    }
}

/// A line for each rank, as in `rank 0  7 2 | 0 5 | 3`.
fn drawn(shares: &Shares) -> String {
    let lines = shares.iter().enumerate();
    let lines = lines.map(|(rank, share)| format!("rank {rank}  {}", in_groups(share)));
    lines.collect::<Vec<_>>().join("\n")
}

fn ranks_share_every_epoch_out(answer: Answer, epoch: &Epoch) -> Outcome {
    let found = epoch.shares(answer);
    epoch.all_ranks_make_the_same_steps(&found)?;
    epoch.every_sample_once(&found)?;
    epoch.the_order_is_the_epochs(&found)?;
    epoch.batches_are_those_of_one_device(&found)?;
    let law = "shards of a batch are runs in order, as `shard_range` cuts them";
    let what = "a batch is shared out in another way".to_owned();
    epoch.demand(found == epoch.shares(epoch_share), what, &found, law)
}
