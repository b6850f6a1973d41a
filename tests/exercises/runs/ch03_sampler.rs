//! The learner's sampler in chapter 3's table of an epoch, and in chapter 4's training.

use split_batch::epoch_share;
use split_batch::loader::EpochShare;

use super::data_parallel::our_step;
use super::prelude::*;
pub use crate::checks::ch03_sampler::Answer;

const RANKS: usize = 2;

/// The epoch of the table: samples, global batch, and seed.
const SHOWN: (usize, usize, u64) = (10, 4, 1);

/// The last batch has two images.
const IMAGES: usize = 3010;

/// Shows an epoch by the learner's sampler and by ours, and the training with both. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let (samples, batch, seed) = SHOWN;
    let (data, options) = (images(IMAGES), options(5, 16, 0.2));
    let mut trained = Vec::new();
    line(format_args!("an epoch of {samples} samples in global batches of {batch}"))?;
    for (name, sampler) in [("yours", answer as EpochShare), ("ours", epoch_share)] {
        let share = |rank| sampler(samples, batch, RANKS, rank, seed, 0);
        let shares: Vec<Vec<Vec<u32>>> = (0..RANKS).map(share).collect();
        for (rank, share) in shares.iter().enumerate() {
            line(format_args!("  {name:5}  rank {rank}  {}", in_groups(share)))?;
        }
        let times =
            |sample: &u32| shares.iter().flatten().flatten().filter(|it| *it == sample).count();
        let never = in_a_row((0..samples as u32).filter(|sample| times(sample) == 0));
        let often = in_a_row((0..samples as u32).filter(|sample| times(sample) > 1));
        line(format_args!("  {name:5}  never: {never}; more than once: {often}"))?;
        let shards = |rank, ranks| Shards { sampler, ..Shards::of_rank(rank, ranks) };
        let step = our_step(Algorithm::default());
        trained.push(Training::of_lenet(name, RANKS, (&data, &options), shards, &step)?);
    }
    line("")?;
    show(&format!("LeNet on {RANKS} devices, {}", counted(IMAGES, "image")), &trained, &[])?;
    Ok(paragraph(format_args!("\n{}", conclusion(&trained[0], &[("ours", &trained[1])])))?)
}
