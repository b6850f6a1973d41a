//! What cannot be done is refused, and what goes wrong is told with its stage and micro-batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use concise_wrapper::{Error, Model as _};
use model_parallel::mesh::Mesh;
use model_parallel::pipeline::{Checked, Kind, Worker};
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::run_ranks;
use split_batch::loader::LocalBatch;

use super::training::{checked, cut, dense, plan};

/// One step of a dense stack on two devices; what the first stage to fail says. `prepare` is called on every
/// stage before its step.
fn told(
    checked: &Checked,
    prepare: impl Fn(usize, &mut LocalBatch) -> Result<(), Error> + Sync,
) -> String {
    told_within(Duration::from_secs(30), checked, prepare)
}

fn told_within(
    timeout: Duration,
    checked: &Checked,
    prepare: impl Fn(usize, &mut LocalBatch) -> Result<(), Error> + Sync,
) -> String {
    let (case, cut) = (dense(), cut("2", 5));
    let failure = run_ranks(&plan(2), timeout, |rank| {
        let stage = rank.rank();
        let network = case.layers.build(cut[stage].clone(), 1, DType::F64, &Device::Cpu)?;
        let (line, mesh) = (Arc::new(rank.clone()), Mesh::pipeline(2));
        let worker = Worker::new(checked, vec![network], line, mesh, case.sample, Instant::now())?;
        let mut share = case.share(0, 8, 4);
        prepare(stage, &mut share)?;
        worker.backward(&share)
    });
    failure.unwrap_err().to_string()
}

#[test]
fn schedules_that_do_not_fit_are_refused() {
    for (checked, expected) in [
        (
            checked(Kind::Interleaved { chunks: 2 }, 2, 4),
            "a schedule of 2 chunks on a stage that has 1",
        ),
        (
            checked(Kind::GPipe, 3, 4),
            "a schedule of 3 stages needs 3 ranks, one for each, and there are 2",
        ),
        (checked(Kind::GPipe, 2, 3), "a batch of 4 micro-batches for a schedule of 3"),
    ] {
        let told = told(&checked, |_, _| Ok(()));
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn layers_that_do_not_fit_are_told_before_the_first_step() {
    let case = dense();
    let failure = run_ranks(&plan(2), Duration::from_secs(5), |rank| {
        // The second stage lacks a layer before it.
        let layers = [0..2, 3..5][rank.rank()].clone();
        let network = case.layers.build(layers, 1, DType::F64, &Device::Cpu)?;
        let checked = checked(Kind::GPipe, 2, 4);
        let (line, mesh) = (Arc::new(rank.clone()), Mesh::pipeline(2));
        Worker::new(&checked, vec![network], line, mesh, case.sample, Instant::now())?;
        Ok::<_, Error>(())
    });
    let told = failure.unwrap_err().to_string();
    assert!(told.starts_with("rank 1 failed: stage 1, before the first step: "), "{told}");
}

#[test]
fn an_error_names_stage_and_micro_batch() {
    let told = told(&checked(Kind::OneFOneB, 2, 4), |stage, share| {
        if stage == 1 {
            share.shards[2].labels = Tensor::new(&[10u32, 11], &Device::Cpu)?;
        }
        Ok(())
    });
    assert!(
        told.starts_with("rank 1 failed: stage 1, micro-batch 2: Forward(2) failed: "),
        "{told}"
    );
}

#[test]
fn a_stage_that_stalls_is_named_in_time() {
    let begin = Instant::now();
    let checked = checked(Kind::GPipe, 2, 4);
    let told = told_within(Duration::from_secs(1), &checked, |stage, _| {
        if stage == 0 {
            std::thread::sleep(Duration::from_secs(2));
        }
        Ok(())
    });
    let expected =
        "stage 1, micro-batch 0: RecvActivation(0) failed: rank 1 waited 1.0 s: rank 0 is alive";
    assert!(told.contains(expected), "{told}");
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_stage_that_stops_is_named() {
    let told = told(&checked(Kind::GPipe, 2, 4), |stage, _| match stage {
        0 => Ok(()),
        _ => Err(candle_core::Error::Msg("no more".to_owned()).into()),
    });
    assert_eq!(told, "rank 1 failed: no more");
}

#[test]
fn a_tensor_of_two_stages_is_refused() {
    let (case, checked) = (dense(), checked(Kind::GPipe, 2, 4));
    let failure = run_ranks(&plan(2), Duration::from_secs(30), |rank| {
        // The third layer is in both.
        let layers = [0..3, 2..5][rank.rank()].clone();
        let network = case.layers.build(layers, 1, DType::F64, &Device::Cpu).unwrap();
        let line = Arc::new(rank.clone());
        let mesh = Mesh::pipeline(2);
        Worker::new(&checked, vec![network], line, mesh, case.sample, Instant::now()).map(drop)
    });
    let told = failure.unwrap_err().to_string();
    assert!(told.contains(" is in stages 0 and 1: each would train its own"), "{told}");
}
