//! Evaluates the test images on all devices.
//!
//! All replicas are equal, so each of them can evaluate each image. If one device evaluated all images, all other devices
//! would wait. Losses and numbers of correct answers can be added up over devices. Accuracies cannot.

// ANCHOR: compare
use candle_core::DType;
use datasets::Dataset;
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::evaluate::{Part, SumsByBatch, evaluate_part};
use single_gpu::lenet::Lenet;

use crate::replicas;

/// Compares the replicas, and then evaluates the test images on all ranks. Returns the sums over all images. All ranks call
/// this together. Fails when a replica differs, or communication fails.
pub fn compare_and_evaluate(
    comm: &dyn Communicator,
    model: &Lenet,
    images: &Dataset,
    dtype: DType,
) -> Result<BatchSums, crate::Error> {
    replicas::compare::<crate::Error>(comm, || model.parameters().snapshot())?;
    evaluate_together(comm, |part| Ok(evaluate_part(model, images, part, dtype, comm.device())?))
}
// ANCHOR_END: compare

// ANCHOR: evaluate
/// Returns the part of the data set that this rank evaluates.
pub fn part_of(comm: &(impl Communicator + ?Sized)) -> Part {
    Part { nth: comm.rank(), of: comm.world_size() }
}

/// Evaluates this rank's part of a data set, and adds up the sums of all ranks. All ranks call this together.
///
/// Every rank gets the sums of loss and correct answers over the whole data set, and learns of a Ctrl-C on any rank. The sums
/// have the same bits on any number of devices. Fails when this rank's part cannot be evaluated, or communication fails.
pub fn evaluate_together<E: From<Error>>(
    comm: &(impl Communicator + ?Sized),
    evaluate: impl FnOnce(Part) -> Result<SumsByBatch, E>,
) -> Result<BatchSums, E> {
    let mine = evaluate(part_of(comm))?;
    Ok(allreduce_by_batch(comm, mine)?.total())
}

/// Adds up the sums of each batch over all ranks. Every rank gets the same sums. Fails when communication fails.
pub fn allreduce_by_batch(
    comm: &(impl Communicator + ?Sized),
    mine: SumsByBatch,
) -> Result<SumsByBatch, Error> {
    // Without test images there are no entries, on any rank. A GPU cannot hold an empty tensor.
    if mine.is_empty() {
        return Ok(mine);
    }
    let of_all = comm.all_reduce(&mine.to_tensor(comm.device())?, Algorithm::OneShot)?;
    Ok(SumsByBatch::from_tensor(&of_all)?)
}
// ANCHOR_END: evaluate

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
        // Five batches of 256, and the last is shorter. With fewer batches, another order often gives the same f64 sums.
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
            assert_eq!(found, vec![expected; devices], "{devices} devices");
        }
    }
}
