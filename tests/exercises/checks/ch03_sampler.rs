//! Chapter 3, `book/src/ch03-split-batch.md`: each rank's share of an epoch.
//!
//! The shares keep each law of a sampler in turn, and are those of stage 3. The message names the first law that is broken.

use std::fmt::Write as _;

use crate::prelude::*;
use split_batch::Sampler;

/// Samples, global batch, world size, rank, seed and epoch; the samples of the rank, step by step.
pub type Answer = fn(usize, usize, usize, usize, u64, usize) -> Vec<Vec<u32>>;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![ranks_share_every_epoch_out];

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

impl Epoch {
    fn found(self, answer: Answer) -> Shares {
        let Self { samples, global_batch, world_size, seed, epoch } = self;
        given(self.described());
        let share = |rank| answer(samples, global_batch, world_size, rank, seed, epoch);
        (0..world_size).map(share).collect()
    }

    fn expected(self) -> Shares {
        let Self { samples, global_batch, world_size, seed, epoch } = self;
        let sampler = |rank| Sampler::new(samples, global_batch, world_size, rank, seed);
        (0..world_size).map(|rank| sampler(rank).epoch(epoch).collect()).collect()
    }

    fn described(self) -> String {
        let Self { samples, global_batch, world_size, seed, epoch } = self;
        format!(
            "{samples} samples, global batches of {global_batch}, world size {world_size}, \
             seed {seed}, epoch {epoch}"
        )
    }

    fn fail(self, what: &str, found: &Shares, law: &str) -> ! {
        let what = format!("{}:\n{what}", self.described());
        fail(&what, &drawn(&self.expected()), &drawn(found), law)
    }

    fn check(self, answer: Answer) {
        let found = self.found(answer);
        self.all_ranks_make_the_same_steps(&found);
        self.every_sample_once(&found);
        self.batches_are_those_of_one_device(&found);
        if found != self.expected() {
            let law = "shards of a batch are runs in order, as `shard_range` cuts them";
            self.fail("a batch is shared out in another way", &found, law);
        }
    }

    fn all_ranks_make_the_same_steps(self, found: &Shares) {
        let law = "in every step all ranks meet at an all-reduce, even one with nothing to add";
        let steps = found[0].len();
        for (rank, share) in found.iter().enumerate() {
            if share.len() != steps {
                let what = format!("rank {rank} makes {} steps, rank 0 makes {steps}", share.len());
                self.fail(&what, found, law);
            }
        }
    }

    fn every_sample_once(self, found: &Shares) {
        let law = "every sample is in one place: all ranks shuffle alike and take different shares";
        let mut places = vec![Vec::new(); self.samples];
        for (rank, share) in found.iter().enumerate() {
            for (step, shard) in share.iter().enumerate() {
                for &sample in shard {
                    match places.get_mut(sample as usize) {
                        Some(places) => places.push(format!("on rank {rank} in step {step}")),
                        None => {
                            let law = "samples are numbered from 0, and an epoch has no others";
                            self.fail(&format!("there is no sample {sample}"), found, law)
                        }
                    }
                }
            }
        }
        if let Some((sample, places)) = (0..).zip(&places).find(|(_, places)| places.len() > 1) {
            let guess = self.guess(found);
            let what = format!("sample {sample} is {} and {}{guess}", places[0], places[1]);
            self.fail(&what, found, law);
        }
        let lost = (0..).zip(&places).filter(|(_, places)| places.is_empty());
        let lost: Vec<u32> = lost.map(|(sample, _)| sample).collect();
        if !lost.is_empty() {
            let what = format!("no rank has samples {}", in_a_row(&lost));
            self.fail(&what, found, "every sample is trained on in every epoch");
        }
    }

    /// A guess at the reason for a sample that comes twice.
    fn guess(self, found: &Shares) -> String {
        let expected = self.expected();
        let sizes = |share: &Vec<Vec<u32>>| share.iter().map(Vec::len).collect::<Vec<_>>();
        if found.iter().all(|share| *share == found[0]) {
            return ": all ranks have the same share".to_owned();
        }
        if found[0] == expected[0] && found.iter().map(sizes).eq(expected.iter().map(sizes)) {
            return ": does rank 1 shuffle in another way than rank 0?".to_owned();
        }
        for (step, left) in (0..self.samples).step_by(self.global_batch).enumerate() {
            let size = self.global_batch.min(self.samples - left);
            let together: usize =
                found.iter().map(|share| share.get(step).map_or(0, Vec::len)).sum();
            if together > size {
                return format!(": step {step} has {together} samples, but {size} are left");
            }
        }
        String::new()
    }

    fn batches_are_those_of_one_device(self, found: &Shares) {
        let law = "k devices equal one: the batches of one device, each cut into shards";
        let alone = Self { world_size: 1, ..self }.expected().swap_remove(0);
        if found[0].len() != alone.len() {
            let (steps, alone) = (found[0].len(), alone.len());
            let what = format!("an epoch is {steps} steps long, on one device {alone}");
            self.fail(&what, found, law);
        }
        for (step, batch) in alone.into_iter().enumerate() {
            let together = found.iter().flat_map(|share| share[step].iter().copied());
            let [together, batch] = [together.collect(), batch].map(|mut samples: Vec<u32>| {
                samples.sort_unstable();
                samples
            });
            if together != batch {
                let what = format!(
                    "step {step} is made of samples {}, on one device of {}",
                    in_a_row(&together),
                    in_a_row(&batch)
                );
                self.fail(&what, found, law);
            }
        }
    }
}

/// A line for each rank, as in `rank 0  7 2 | 0 5 | 3`.
fn drawn(shares: &Shares) -> String {
    let mut lines = String::new();
    for (rank, share) in shares.iter().enumerate() {
        let _ = writeln!(lines, "rank {rank}  {}", in_groups(share));
    }
    lines
}

fn ranks_share_every_epoch_out(answer: Answer) {
    within("sharing an epoch out", move || {
        for (samples, global_batch) in
            [(8, 4), (10, 4), (9, 4), (7, 3), (3, 8), (64, 16), (50, 7), (0, 4)]
        {
            for world_size in [2, 1, 3, 4] {
                let first = Epoch { samples, global_batch, world_size, seed: 5, epoch: 0 };
                first.check(answer);
                for (other, what) in [
                    (Epoch { epoch: 1, ..first }, "epoch 1 comes in the order of epoch 0"),
                    (Epoch { seed: 6, ..first }, "seed 6 gives the order of seed 5"),
                ] {
                    let found = other.found(answer);
                    if found == first.found(answer) && other.expected() != first.expected() {
                        let law = "a new shuffle each epoch, that only seed and epoch decide";
                        other.fail(what, &found, law);
                    }
                    other.check(answer);
                }
            }
        }
    });
}
