//! LeNet trained on a fast device and a slow one, with the learner's shares and the learner's step.

use std::error::Error;
use std::time::Instant;

use candle_core::{DType, Tensor};
use datasets::{Batch, Split, synthetic};
use devices::DevicePlan;
use harness::records::BatchSums;
use harness::report::{Table, columns, line, paragraph};
use harness::statistics::median;
use ops::difference::largest_difference;
use params_and_allreduce::communicator::{self, Communicator as _};
use params_and_allreduce::thread::{Rank, run_ranks};
use single_gpu::sgd::sgd;

use super::Peer;
use super::ddp::{TIMEOUT, distance};
use crate::classifier::Classifier;
use crate::replicas::Weights;
use crate::speed::{Speed, step_seconds};

/// The functions `shares` and `step`.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the exercise documents its functions")]
pub struct Answer {
    pub shares: fn(usize, &[Speed]) -> candle_core::Result<Vec<usize>>,
    pub step:
        fn(&Peer, &Classifier, &Batch, &[usize], f64) -> Result<BatchSums, communicator::Error>,
}

const BATCH: usize = 256;
const STEPS: usize = 8;
const RATE: f64 = 0.2;

/// The second device takes so many times the time of the first.
const SLOWNESS: f64 = 3.0;

/// Weights whose difference after one step is at most this are equal up to rounding in f32.
const ROUNDING: f64 = 1e-4;

/// Shows the steps with equal shares and with the learner's. Fails when the answer does.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let all: Vec<u32> = (0..BATCH as u32).collect();
    let batch = synthetic::dataset(Split::Train, BATCH).batch(&all, DType::F32)?;
    let speeds = on_ranks(|rank| speed(rank, &batch))?;
    for (device, speed) in speeds.iter().enumerate() {
        let [fixed, per_sample] = [speed.fixed, speed.per_sample].map(|seconds| 1e3 * seconds);
        line(format_args!("device {device}: {fixed:.1} ms and {per_sample:.3} ms for each image"))?;
    }
    let yours = (answer.shares)(BATCH, &speeds)?;
    if yours.len() != speeds.len() {
        return Err(format!("the answer has {} shares for 2 devices", yours.len()).into());
    }
    let mut table = Table::new("LeNet, batch 256").column("shares", 0);
    for name in ["predicted", "measured"] {
        table = table.column(name, 0);
    }
    let mut after = Vec::new();
    for (name, shares) in [("equal shares", vec![BATCH / 2; 2]), ("yours", yours)] {
        let (seconds, weights) =
            on_ranks(|rank| steps(rank, answer, &batch, &shares))?.swap_remove(0);
        let told = format!("{} + {}", shares[0], shares[1]);
        let [predicted, measured] = [step_seconds(&speeds, &shares), seconds]
            .map(|seconds| format!("{:.1} ms", 1e3 * seconds));
        table.row([name.to_owned(), told, predicted, measured]);
        after.push(weights);
    }
    line(table.text(columns()))?;
    let alone = Classifier::lenet(1, &candle_core::Device::Cpu, 1.0)?;
    sgd(alone.parameters(), &alone.gradients(&batch)?.gradients, RATE, BATCH)?;
    let apart = largest_difference(&after[1], &alone.parameters().snapshot()?)?;
    let equal = distance(apart, ROUNDING, "the weights of one device");
    Ok(paragraph(format_args!("\nAfter the first step, {equal}"))?)
}

fn on_ranks<R: Send>(
    work: impl Fn(&Rank) -> Result<R, communicator::Error> + Sync,
) -> Result<Vec<R>, Box<dyn Error>> {
    Ok(run_ranks(&DevicePlan::slices(2)?, TIMEOUT, work)?)
}

fn model(rank: &Rank) -> candle_core::Result<Classifier> {
    let slowness = if rank.rank() == 1 { SLOWNESS } else { 1.0 };
    Classifier::lenet(1, rank.device(), slowness)
}

/// Measures a device, with a small shard and a large one.
fn speed(rank: &Rank, batch: &Batch) -> Result<Speed, communicator::Error> {
    let model = model(rank)?;
    let seconds = |samples: usize| {
        let cut = |tensor: &Tensor| tensor.narrow(0, 0, samples);
        let shard = Batch { images: cut(&batch.images)?, labels: cut(&batch.labels)? };
        let mut times = Vec::new();
        for _ in 0..7 {
            let begun = Instant::now();
            model.gradients(&shard)?;
            times.push(begun.elapsed().as_secs_f64());
        }
        Ok::<_, candle_core::Error>(median(times))
    };
    rank.barrier()?;
    seconds(BATCH)?;
    let (small, large) = (seconds(BATCH / 8)?, seconds(BATCH)?);
    let per_sample = ((large - small) / (BATCH - BATCH / 8) as f64).max(1e-9);
    Ok(Speed { fixed: (large - per_sample * BATCH as f64).max(0.0), per_sample })
}

/// Makes steps. Returns the median time of a step, and the weights after the first.
fn steps(
    rank: &Rank,
    answer: Answer,
    batch: &Batch,
    shares: &[usize],
) -> Result<(f64, Weights), communicator::Error> {
    let (model, peer) = (model(rank)?, Peer(rank.into()));
    (answer.step)(&peer, &model, batch, shares, RATE)?;
    let first = model.parameters().snapshot()?;
    let mut times = Vec::new();
    for _ in 0..STEPS {
        let begun = Instant::now();
        (answer.step)(&peer, &model, batch, shares, RATE)?;
        times.push(begun.elapsed().as_secs_f64());
    }
    Ok((median(times), first))
}
