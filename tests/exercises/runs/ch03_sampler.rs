//! The learner's sampler in chapter 3's table of an epoch, and in chapter 4's training.

use std::error::Error;

use candle_core::DType;
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::TrainOptions;
use harness::report::{Report, counted, line, paragraph};
use params_and_allreduce::Algorithm;
use scratch_data_parallel::{train, train_batch};
use split_batch::epoch_share;
use split_batch::loader::{EpochShare, Shards};

use super::comparison::{Row, show, weights};
pub use crate::checks::ch03_sampler::Answer;
use crate::outcome::{in_a_row, in_groups};

const RANKS: usize = 2;

/// The epoch of the table: samples, global batch, and seed.
const SHOWN: (usize, usize, u64) = (10, 4, 1);

/// The last batch has two images.
const IMAGES: usize = 4098;
const OPTIONS: TrainOptions =
    TrainOptions { epochs: 2, batch_size: 64, learning_rate: 0.2, seed: 1 };

/// Shows an epoch by the learner's sampler and by ours, and the training with both. Fails when the answer does.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let (samples, batch, seed) = SHOWN;
    let samplers: [(&str, EpochShare); 2] = [("yours", answer), ("ours", epoch_share)];
    line(format_args!("an epoch of {samples} samples in global batches of {batch}"))?;
    for (name, sampler) in samplers {
        let share = |rank| sampler(samples, batch, RANKS, rank, seed, 0);
        let shares: Vec<Vec<Vec<u32>>> = (0..RANKS).map(share).collect();
        for (rank, share) in shares.iter().enumerate() {
            line(format_args!("  {name:5}  rank {rank}  {}", in_groups(share)))?;
        }
        let times =
            |sample: &u32| shares.iter().flatten().flatten().filter(|it| *it == sample).count();
        let [never, often] =
            [|times| times == 0, |times| times > 1].map(|is: fn(usize) -> bool| {
                in_a_row((0..samples as u32).filter(|sample| is(times(sample))))
            });
        line(format_args!("  {name:5}  never: {never}; more than once: {often}"))?;
    }
    let data = LoadedData::draw((Some(IMAGES), Some(500)));
    let (plan, algorithm) = (DevicePlan::slices(RANKS)?, Algorithm::default());
    let trained = samplers.map(|(_, sampler)| {
        let shards = |rank, ranks| Shards { sampler, ..Shards::of_rank(rank, ranks) };
        let report = &mut Report::silent();
        train(&data, &OPTIONS, DType::F32, &plan, report, shards, |comm, model, batch, rate| {
            train_batch(&**comm, model, batch, rate, algorithm)
        })
    });
    let [yours, ours] = trained;
    let (yours, ours) = (yours?, ours?);
    line("")?;
    let title = format!("LeNet on {RANKS} devices, {}", counted(IMAGES, "image"));
    show(&title, &[Row::of("yours", &yours), Row::of("ours", &ours)])?;
    let wrong = "that is another batch, and no error shows it.";
    Ok(paragraph(format_args!("\n{}", weights(&yours, &ours, wrong)?))?)
}
