//! What an all-reduce in one computer's memory has to do at the least: each of two ranks adds up a half, and
//! copies the other half.

use params_and_allreduce::add_and_copy::AddAndCopy;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::communicator::Error;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, RankFailure, run_ranks};

use super::all_reduce::{SIZES, calls, timed_together};
use super::{Answer, Arguments, in_seconds};

/// Seconds for every size, measured as an all-reduce is.
pub(super) fn measure(arguments: &Arguments) -> anyhow::Result<Answer> {
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
