//! What cannot be done is refused, and what goes wrong is told with its stage and micro-batch.

use super::training::{checked, dense, plan, worker};
use crate::prelude::*;

/// One step of a dense stack on two devices, with these layers on each: the message of the first stage that fails.
/// `prepare` is called on every stage before its step.
fn told(
    timeout: Duration,
    checked: &Checked,
    layers: [Range<usize>; 2],
    prepare: impl Fn(usize, &mut LocalBatch) -> Result<(), Error> + Sync,
) -> String {
    let case = dense();
    let failure = run_ranks(&plan(2), timeout, |rank| {
        let layers = (&case.layers, layers[rank.rank()].clone());
        let worker = worker(rank, Mesh::pipeline(2), checked, layers, case.sample)?;
        let mut share = case.share(0, 8, 4);
        prepare(rank.rank(), &mut share)?;
        worker.backward(&share)
    });
    failure.unwrap_err().to_string()
}

const TIMEOUT: Duration = Duration::from_secs(30);
const LAYERS: [Range<usize>; 2] = [0..2, 2..5];

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
        let told = told(TIMEOUT, &checked, LAYERS, |_, _| Ok(()));
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn layers_that_do_not_fit_are_refused_before_the_first_step() {
    for (layers, expected) in [
        // The second stage lacks a layer before it; the third layer is in both.
        ([0..2, 3..5], "rank 1 failed: stage 1, before the first step: "),
        ([0..3, 2..5], " is in stages 0 and 1: each would train its own"),
    ] {
        let told = told(TIMEOUT, &checked(Kind::GPipe, 2, 4), layers, |_, _| Ok(()));
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn an_error_names_stage_and_micro_batch() {
    let told = told(TIMEOUT, &checked(Kind::OneFOneB, 2, 4), LAYERS, |stage, share| {
        if stage == 1 {
            share.shards[2].labels = Tensor::new(&[10u32, 11], &Device::Cpu)?;
        }
        Ok(())
    });
    let expected = "rank 1 failed: stage 1, micro-batch 2: Forward(2) failed: ";
    assert!(told.starts_with(expected), "{told}");
}

#[test]
fn a_stage_that_stalls_is_named_in_time() {
    let begin = Instant::now();
    let checked = checked(Kind::GPipe, 2, 4);
    let told = told(Duration::from_secs(1), &checked, LAYERS, |stage, _| {
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
    let told = told(TIMEOUT, &checked(Kind::GPipe, 2, 4), LAYERS, |stage, _| match stage {
        0 => Ok(()),
        _ => Err(candle_core::Error::Msg("no more".to_owned()).into()),
    });
    assert_eq!(told, "rank 1 failed: no more");
}
