//! What makes no sense is refused, and a rank that fails is named.

use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::DType;
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::{Error, Model as _, Network};
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::lenet::{Channels, LeNet};
use model_parallel::tensor_parallel::{Cut, Group, Parts, TensorParallel};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{Rank, run_ranks};
use single_gpu::device::{DeviceKind, DevicePlan};
use single_gpu::parameters::overwrite;

use super::WAIT;
use super::networks::images;

fn failure(ranks: usize, work: impl Fn(&Rank<'_>, Group) -> Result<(), Error> + Sync) -> String {
    let plan = DevicePlan::new(DeviceKind::Cpu, ranks, NonZeroUsize::new(1)).unwrap();
    let work = |rank: &Rank<'_>| work(rank, Group::new(Arc::new(rank.line()), Algorithm::Ring));
    run_ranks(&plan, WAIT, work).unwrap_err().to_string()
}

#[test]
fn more_ranks_than_features_are_refused_by_name() {
    let dense = failure(3, |_, group| {
        let build = |parts: &Parts<'_>, _: &Norms| DenseStack::new(&[784, 2, 10], parts);
        TensorParallel::new(1, DType::F32, group, build).map(drop)
    });
    assert!(dense.contains("dense0.weight: 2 features cannot be cut into 3 parts"), "{dense}");
    let lenet = failure(11, |_, group| {
        let build = |parts: &Parts<'_>, _: &Norms| LeNet::new(Channels::Gathered, parts);
        TensorParallel::new(1, DType::F32, group, build).map(drop)
    });
    assert!(lenet.contains("W4: 10 features cannot be cut into 11 parts"), "{lenet}");
}

#[test]
fn ranks_that_were_not_started_alike_are_told() {
    let told = failure(2, |rank, group| {
        let build = |parts: &Parts<'_>, _: &Norms| DenseStack::new(&[784, 8, 10], parts);
        TensorParallel::new(1 + rank.rank() as u64, DType::F32, group, build).map(drop)
    });
    assert_eq!(told, "rank 1 failed: rank 1 has seed 2, rank 0 has 1: start all ranks alike");
    // 9 or 8 hidden features: rank 0's part is of 5 or of 4, and rank 1's of 4 in either case.
    let told = failure(2, |rank, group| {
        let hidden = 9 - rank.rank();
        let build = move |parts: &Parts<'_>, _: &Norms| DenseStack::new(&[784, hidden, 10], parts);
        TensorParallel::new(1, DType::F32, group, build).map(drop)
    });
    assert!(
        told.starts_with("rank 1 failed: rank 1 has tensor dense0.weight F32 [784, 8]"),
        "{told}"
    );
}

#[test]
fn a_name_has_one_cut() {
    let told = failure(2, |_, group| {
        let build = |parts: &model_parallel::tensor_parallel::Parts<'_>, _: &_| {
            let parts = parts.pp("layer");
            parts.cut((4, 4), "w", candle_nn::init::ZERO, Cut::new(0, 4))?;
            parts.cut((4, 4), "w", candle_nn::init::ZERO, Cut::new(1, 4))?;
            DenseStack::new(&[784, 8, 10], &parts)
        };
        TensorParallel::new(1, DType::F32, group, build).map(drop)
    });
    assert!(told.contains("layer.w is asked for as"), "{told}");
}

/// In the middle of a step, with all others waiting for its term of a sum.
#[test]
fn a_rank_that_fails_is_named() {
    let told = failure(3, |rank, group| {
        let build = |parts: &Parts<'_>, _: &Norms| LeNet::new(Channels::Summed, parts);
        let model = TensorParallel::new(1, DType::F64, group, build)?;
        if rank.rank() == 1 {
            return Err(candle_core::Error::Msg("disk full".to_owned()).into());
        }
        model.evaluate(&images()).map(drop)
    });
    assert_eq!(told, "rank 1 failed: disk full");
}

#[test]
fn a_replica_has_the_values_of_its_network() {
    let plan = DevicePlan::new(DeviceKind::Cpu, 2, NonZeroUsize::new(1)).unwrap();
    run_ranks(&plan, WAIT, |rank| {
        let group = Group::new(Arc::new(rank.line()), Algorithm::Ring);
        let build = |parts: &Parts<'_>, _: &Norms| DenseStack::new(&[784, 8, 10], parts);
        let model = TensorParallel::new(1, DType::F64, group, build)?;
        let network: &Network<DenseStack> = model.network();
        let weight = network.weights().get("dense0.weight").unwrap();
        overwrite(weight, &weight.detach().affine(2.0, 0.0)?)?;
        let replica = network.replica(rank.device())?;
        let same = single_gpu::difference::largest_difference(
            &replica.weights().snapshot()?,
            &network.weights().snapshot()?,
        )?;
        assert_eq!(same, 0.0);
        Ok::<_, Error>(())
    })
    .unwrap();
}
