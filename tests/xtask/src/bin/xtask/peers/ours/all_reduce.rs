//! An all-reduce between two ranks of one thread, in f32, and the least work of every all-reduce in one computer's memory:
//! each of two ranks adds up a half, and copies the other half.

use std::time::Instant;

use candle_core::{DType, Tensor};
use params_and_allreduce::add_and_copy::AddAndCopy;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, run_ranks};
use serde_json::{Map, Value, json};

use super::{Arguments, Work};

/// The tensors, in numbers of four bytes. ResNet-18's gradients take 45 MB.
const SIZES: [(&str, usize); 3] = [("4 KB", 1_000), ("1 MB", 250_000), ("45 MB", 11_250_000)];

/// Returns the seconds of a call for every size.
///
/// No rank leaves an all-reduce before all ranks have entered it, so the clock of one rank is enough for many calls.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Value> {
    let plan = arguments.plan(2)?;
    let limits = SIZES.map(|(_, numbers)| {
        (arguments.work == Work::AddAndCopy).then(|| AddAndCopy::new(plan.len(), numbers))
    });
    let mut ranks = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
        let sizes = SIZES.iter().zip(&limits);
        let seconds = sizes.map(|((_, numbers), limit)| seconds(rank, arguments, *numbers, limit));
        seconds.collect::<Result<Vec<_>, Error>>()
    })?;
    let names = SIZES.map(|(name, _)| name.to_owned());
    let series: Map<_, _> = names.into_iter().zip(ranks.swap_remove(0)).collect();
    Ok(json!({ "seconds": series }))
}

/// Returns the mean seconds of a call in each repetition.
fn seconds(
    rank: &Rank,
    arguments: &Arguments,
    numbers: usize,
    limit: &Option<AddAndCopy>,
) -> Result<Value, Error> {
    // A single short call would measure the clock.
    let calls = (30_000_000 / numbers).clamp(3, 1000);
    // Each sum is the tensor of the next call, so ranks read new numbers, as Gloo's ranks do. Zeros stay zeros.
    let mut tensor = Tensor::zeros(numbers, DType::F32, rank.device())?;
    let mut call = || {
        match limit {
            Some(limit) => limit.run(rank)?,
            None => tensor = rank.all_reduce(&tensor, arguments.algorithm)?,
        }
        Ok::<_, Error>(())
    };
    call()?;
    let mut repetition = |_| {
        rank.barrier()?;
        let start = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        Ok(start.elapsed().as_secs_f64() / calls as f64)
    };
    let seconds = (0..arguments.repetitions.get()).map(&mut repetition);
    Ok(json!(seconds.collect::<Result<Vec<f64>, Error>>()?))
}
