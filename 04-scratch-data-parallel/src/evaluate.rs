//! Test images on all devices.
//!
//! Replicas are equal, so any of them may answer for any image. If one did it for all, the others would wait: with 60,000
//! images to learn from and 10,000 to be tested on, eight devices would wait for it nearly half as long as they train.
//! Correct answers and losses are sums, and sums can be added up over devices; accuracies cannot.

use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::evaluate::{Part, SumsByBatch};

/// What a rank evaluates, where all ranks of a communicator share a data set.
pub fn part_of(rank: &(impl Communicator + ?Sized)) -> Part {
    Part { nth: rank.rank(), of: rank.world_size() }
}

/// Sums of loss and correct answers over a data set of which each rank evaluates a part; on rank 0, and `None` on the
/// others. All ranks call this together.
///
/// They are those of one device to the last bit: what ranks add to each other's sums of a batch is zeros, and the batches
/// are added up last.
///
/// # Errors
///
/// When this rank's part cannot be evaluated, or another rank stops or stalls.
// ANCHOR: evaluate
pub fn evaluate_together<E: From<Error>>(
    rank: &(impl Communicator + ?Sized),
    evaluate: impl FnOnce(Part) -> Result<SumsByBatch, E>,
) -> Result<Option<BatchSums>, E> {
    let mine = evaluate(part_of(rank))?;
    let of_all = allreduce_by_batch(rank, mine)?;
    Ok((rank.rank() == 0).then(|| of_all.total()))
}
// ANCHOR_END: evaluate

/// What all ranks have found of a data set, the same on every rank.
///
/// # Errors
///
/// When another rank stops or stalls.
pub fn allreduce_by_batch(
    rank: &(impl Communicator + ?Sized),
    mine: SumsByBatch,
) -> Result<SumsByBatch, Error> {
    // Nothing to send, and on a GPU nothing to send it in.
    if mine.is_empty() {
        return Ok(mine);
    }
    let of_all = rank.all_reduce(&mine.to_tensor(rank.device())?, Algorithm::OneShot)?;
    Ok(SumsByBatch::from_tensor(&of_all)?)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use datasets::Split;
    use datasets::synthetic::dataset;
    use devices::DevicePlan;
    use params_and_allreduce::get_params;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
    use single_gpu::evaluate::{evaluate, evaluate_part};
    use single_gpu::lenet::Lenet;

    use super::*;
    use crate::Error;

    #[test]
    fn on_any_number_of_devices_the_sums_are_those_of_one_to_the_last_bit() {
        // Five batches of 256, the last of them shorter. (Of fewer, sums in f64 are often the same in any order.)
        let images = dataset(Split::Test, 1200);
        for (dtype, devices) in
            [(DType::F32, 2), (DType::F64, 1), (DType::F64, 2), (DType::F64, 3), (DType::F64, 6)]
        {
            let lenet = Lenet::new(1, dtype, &Device::Cpu).unwrap();
            let expected = evaluate(&lenet, &images, dtype, &Device::Cpu).unwrap();
            let plan = DevicePlan::slices(devices).unwrap();
            let found = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
                let parameters = get_params(lenet.parameters(), rank.device())?;
                let replica = Lenet::with_parameters(parameters)?;
                evaluate_together(rank, |part| -> Result<_, Error> {
                    Ok(evaluate_part(&replica, &images, part, dtype, rank.device())?)
                })
            });
            let found = found.unwrap();
            assert_eq!(found[0], Some(expected), "{devices} devices");
            assert!(found[1..].iter().all(Option::is_none));
        }
    }
}
