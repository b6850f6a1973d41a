//! What makes no sense is refused, and a rank that fails is named.

use std::sync::Arc;

use candle_core::DType;
use checkpoints::{Checkpoints, Configuration};
use concise_wrapper::batch_norm::Norms;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::optimizer::Extras;
use concise_wrapper::train::train;
use concise_wrapper::{Error, Model as _, Network};
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::TrainOptions;
use harness::report::Report;
use model_parallel::mesh::{Axis, Mesh};
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::lenet::{Channels, LeNet};
use model_parallel::tensor_parallel::{Cut, Group, Parts, Replicated, TensorParallel};
use ops::parameters::overwrite;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::{Rank, run_ranks};

use super::WAIT;
use super::networks::images;

fn failure(ranks: usize, work: impl Fn(&Rank, Group) -> Result<(), Error> + Sync) -> String {
    let plan = DevicePlan::slices(ranks).unwrap();
    let work = |rank: &Rank| work(rank, Group::new(Arc::new(rank.clone()), Algorithm::Ring));
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

/// Each rank's file would hold a part.
#[test]
fn checkpoints_of_parts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints {
        folder: folder.path().join("checkpoints"),
        every: 1,
        keep: 1,
        resume: None,
        configuration: Configuration::default(),
    };
    let data = LoadedData { name: "noise".to_owned(), train: images(), test: images() };
    let options = TrainOptions { epochs: 1, batch_size: 7, learning_rate: 0.1, seed: 1 };
    let trained = |model: &dyn Fn() -> Result<(), Error>| model().unwrap_err().to_string();
    for mesh in ["1x1x2", "2x1x2"] {
        let mesh: Mesh = mesh.parse().unwrap();
        let told = failure(mesh.devices(), |rank, _| {
            let all: SharedCommunicator = rank.into();
            let group = Group::new(mesh.along(&all, Axis::Tensor)?, Algorithm::Ring);
            let build = |parts: &Parts<'_>, _: &Norms| DenseStack::new(&[784, 8, 10], parts);
            let model = TensorParallel::new(1, DType::F64, group, build)?;
            let (extras, saved, report) = (Extras::default(), Some(&checkpoints), Report::silent);
            let told = trained(&|| {
                let report = &mut report();
                train(&model, &data, &options, &extras, saved, report, |_| Ok(())).map(drop)
            });
            assert!(told.contains("a model in parts has no checkpoints"), "{told}");
            let model = Replicated::new(model, &all, mesh, Reduction::default())?;
            train(&model, &data, &options, &extras, saved, &mut report(), |_| Ok(())).map(drop)
        });
        assert!(told.contains("a model in parts has no checkpoints"), "{told}");
    }
    assert!(!folder.path().join("checkpoints").exists());
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
    let plan = DevicePlan::slices(2).unwrap();
    run_ranks(&plan, WAIT, |rank| {
        let group = Group::new(Arc::new(rank.clone()), Algorithm::Ring);
        let build = |parts: &Parts<'_>, _: &Norms| DenseStack::new(&[784, 8, 10], parts);
        let model = TensorParallel::new(1, DType::F64, group, build)?;
        let network: &Network<DenseStack> = model.network();
        let weight = network.weights().get("dense0.weight").unwrap();
        overwrite(weight, &weight.detach().affine(2.0, 0.0)?)?;
        let replica = network.replica(rank.device())?;
        let same = ops::difference::largest_difference(
            &replica.weights().snapshot()?,
            &network.weights().snapshot()?,
        )?;
        assert_eq!(same, 0.0);
        Ok::<_, Error>(())
    })
    .unwrap();
}
