//! LeNet trained on a fast device and a slow one, with the learner's shares and the learner's step.

use super::prelude::*;
pub use crate::checks::ch05_unequal_devices::Answer;
use crate::speed::{Speed, step_seconds};

const BATCH: usize = 256;
const RATE: f64 = 0.2;

/// The second device takes so many times the time of the first.
const SLOWNESS: f64 = 3.0;

/// Shows the steps with equal shares and with the learner's. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let batch = batch(BATCH)?;
    let plan = DevicePlan::slices(2)?;
    let model = |rank: &Rank| {
        Classifier::lenet(1, rank.device(), if rank.rank() == 1 { SLOWNESS } else { 1.0 })
    };
    let speeds = run_ranks(&plan, TIMEOUT, |rank| {
        let (model, small) = (model(rank)?, self::batch(BATCH / 8)?);
        rank.barrier()?;
        let [_, small, large] =
            [&batch, &small, &batch].map(|shard| seconds(7, || model.gradients(shard).map(drop)));
        let (small, large) = (small?, large?);
        let per_sample = ((large - small) / (BATCH - BATCH / 8) as f64).max(1e-9);
        let fixed = (large - per_sample * BATCH as f64).max(0.0);
        Ok::<_, CommError>(Speed { fixed, per_sample })
    })?;
    for (device, Speed { fixed, per_sample }) in speeds.iter().enumerate() {
        let per_sample = 1e3 * per_sample;
        line(format_args!(
            "device {device}: {} and {per_sample:.3} ms for each image",
            milliseconds(*fixed)
        ))?;
    }
    let yours = (answer.shares)(BATCH, &speeds)?;
    if yours.len() != speeds.len() {
        return Err(format!("the answer has {} shares for 2 devices", yours.len()).into());
    }
    let (mut rows, mut first) = (Vec::new(), Snapshot::new());
    for (name, shares) in [("equal shares", vec![BATCH / 2; 2]), ("yours", yours)] {
        let made = run_ranks(&plan, TIMEOUT, |rank| {
            let model = model(rank)?;
            let step = || (answer.step)(&Peer::new(rank), &model, &batch, &shares, RATE).map(drop);
            step()?;
            let first = model.parameters().snapshot()?;
            Ok::<_, CommError>((first, seconds(8, step)?))
        });
        let (weights, measured) = made?.swap_remove(0);
        let times = [step_seconds(&speeds, &shares), measured].map(milliseconds);
        let shares = format!("{} + {}", shares[0], shares[1]);
        rows.push([&[name.to_owned(), shares][..], &times].concat());
        first = weights;
    }
    table("LeNet, batch 256", &["shares", "predicted", "measured"], rows)?;
    super::note_if_busy()?;
    let alone = Classifier::lenet(1, &Device::Cpu, 1.0)?;
    sgd(alone.parameters(), &alone.gradients(&batch)?.gradients, RATE, BATCH)?;
    let difference = difference(&first, &alone.parameters().snapshot()?, "one device's", ROUNDING);
    Ok(paragraph(format_args!("\nAfter the first step, {difference}"))?)
}

/// The first images.
fn batch(size: usize) -> candle_core::Result<Batch> {
    let all: Vec<u32> = (0..size as u32).collect();
    synthetic::dataset(Split::Train, size).batch(&all, DType::F32)
}

/// The median time of some calls.
fn seconds<E>(calls: usize, call: impl Fn() -> Result<(), E>) -> Result<f64, E> {
    let time = |_| {
        let begun = Instant::now();
        call().map(|()| begun.elapsed().as_secs_f64())
    };
    Ok(median((0..calls).map(time).collect::<Result<Vec<_>, _>>()?))
}
