//! Test images on all devices.
//!
//! Replicas are equal, so any of them may answer for any image. If one did it for all, the others would wait: with 60,000
//! images to learn from and 10,000 to be tested on, eight devices would wait for it nearly half as long as they train.
//! Correct answers and losses are sums, and sums can be added up over devices; accuracies cannot.

use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::evaluate::Part;
use single_gpu::train::BatchSums;

use crate::allreduce_sums;

/// What a rank evaluates, where all ranks of a communicator share a data set.
pub fn part_of(rank: &impl Communicator) -> Part {
    Part { nth: rank.rank(), of: rank.world_size() }
}

/// Sums of loss and correct answers over a data set of which each rank evaluates a part; on rank 0, and `None` on the
/// others. All ranks call this together.
///
/// The answers are those of one device. So is the sum of f32 losses, to the last bit: their sums per batch are added in
/// f64, which has room for all digits of thousands of them, so that their order does not matter. (There is no such room
/// for losses in f64: the last digit of their sum may depend on the number of devices.)
///
/// # Errors
///
/// When this rank's part cannot be evaluated, or another rank stops or stalls.
// ANCHOR: evaluate
pub fn evaluate_together<E: From<Error>>(
    rank: &impl Communicator,
    evaluate: impl FnOnce(Part) -> Result<BatchSums, E>,
) -> Result<Option<BatchSums>, E> {
    let mine = evaluate(part_of(rank))?;
    let of_all = allreduce_sums(rank, mine, Algorithm::OneShot)?;
    Ok((rank.rank() == 0).then_some(of_all))
}
// ANCHOR_END: evaluate

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use candle_core::{DType, Device};
    use params_and_allreduce::get_params;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
    use single_gpu::data::Split;
    use single_gpu::data::synthetic::dataset;
    use single_gpu::device::{DeviceKind, DevicePlan};
    use single_gpu::evaluate::{evaluate, evaluate_part};
    use single_gpu::lenet::Lenet;

    use super::*;
    use crate::Error;

    #[test]
    fn on_any_number_of_devices_the_sums_are_those_of_one_to_the_last_bit() {
        // Three batches of 256, the last of them shorter.
        let images = dataset(Split::Test, 600);
        let lenet = Lenet::new(1, DType::F32, &Device::Cpu).unwrap();
        let expected = evaluate(&lenet, &images, DType::F32, &Device::Cpu).unwrap();
        for devices in [1, 2, 3, 5] {
            let plan = DevicePlan::new(DeviceKind::Cpu, devices, NonZeroUsize::new(1)).unwrap();
            let found = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
                let parameters = get_params(lenet.parameters(), rank.device())?;
                let replica = Lenet::with_parameters(parameters)?;
                evaluate_together(rank, |part| -> Result<_, Error> {
                    Ok(evaluate_part(&replica, &images, part, DType::F32, rank.device())?)
                })
            });
            let found = found.unwrap();
            assert_eq!(found[0], Some(expected), "{devices} devices");
            assert!(found[1..].iter().all(Option::is_none));
        }
    }
}
