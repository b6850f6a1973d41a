//! An all-reduce between two ranks of one thread, f32; and what it has to do at the least in one computer's memory: each
//! of two ranks adds up a half, and copies the other half.

use std::num::NonZeroUsize;
use std::time::Instant;

use candle_core::{DType, Tensor};
use params_and_allreduce::add_and_copy::AddAndCopy;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, RankFailure, run_ranks};

use super::{Answer, Arguments, in_seconds};

/// The tensors, in numbers of four bytes; 45 MB are ResNet-18's gradients.
const SIZES: [(&str, usize); 3] = [("4 KB", 1_000), ("1 MB", 250_000), ("45 MB", 11_250_000)];

/// How many calls are timed together: a single short one would measure the clock.
fn calls(numbers: usize) -> usize {
    (30_000_000 / numbers).clamp(3, 1000)
}

/// Seconds of a call, for every size, on average over the calls of each repetition.
///
/// Nobody leaves an all-reduce before everybody has come to it, so over many calls one rank's clock tells.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Answer> {
    let mut seconds = run_ranks(&arguments.plan(2)?, DEFAULT_TIMEOUT, |rank| {
        SIZES.iter().map(|(_, numbers)| seconds(rank, arguments, *numbers)).collect()
    })?;
    let seconds: Vec<Vec<f64>> = seconds.swap_remove(0);
    let mut seconds = seconds.into_iter();
    Ok(in_seconds(SIZES.map(|(name, _)| (name, seconds.next().unwrap_or_default()))))
}

fn seconds(rank: &Rank, arguments: &Arguments, numbers: usize) -> Result<Vec<f64>, Error> {
    // Each sum is the next call's tensor, so that ranks read what was just written, as Gloo's in place do. Zeros stay zeros.
    let mut tensor = Tensor::zeros(numbers, DType::F32, rank.device())?;
    let mut all_reduce = || {
        tensor = rank.all_reduce(&tensor, arguments.algorithm)?;
        Ok(())
    };
    all_reduce()?;
    timed_together(arguments.repetitions, calls(numbers), || rank.barrier(), all_reduce)
}

/// Seconds of a call of `work`, on average over `calls` calls that follow `begin`, for each repetition.
fn timed_together<E>(
    repetitions: NonZeroUsize,
    calls: usize,
    begin: impl Fn() -> Result<(), E>,
    mut work: impl FnMut() -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    let mut repetition = || {
        begin()?;
        let start = Instant::now();
        (0..calls).try_for_each(|_| work())?;
        Ok(start.elapsed().as_secs_f64() / calls as f64)
    };
    (0..repetitions.get()).map(|_| repetition()).collect()
}

pub(super) fn limit(arguments: &Arguments) -> anyhow::Result<Answer> {
    let plan = arguments.plan(2)?;
    let mut all = SIZES.map(|(name, _)| (name, Vec::new()));
    for ((_, seconds), (_, numbers)) in all.iter_mut().zip(SIZES) {
        let limit = AddAndCopy::new(plan.len(), numbers);
        let measured: Result<Vec<Vec<f64>>, RankFailure<Error>> =
            run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
                let run = || limit.run(rank);
                run()?;
                timed_together(arguments.repetitions, calls(numbers), || rank.barrier(), run)
            });
        *seconds = measured?.swap_remove(0);
    }
    Ok(in_seconds(all))
}
