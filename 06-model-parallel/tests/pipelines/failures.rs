//! What cannot be done is refused, and what goes wrong is told with its stage and micro-batch.

use params_and_allreduce::communicator::Error as CommError;

use super::training::{checked, checked_on, dense, executor, images, plan};
use crate::before::Before;
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
        let executor = executor(rank, Mesh::pipeline(2), checked, layers, case.sample)?;
        let mut share = case.share(0, 8, 4);
        prepare(rank.rank(), &mut share)?;
        executor.backward(&share)
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
            "a schedule with 2 units on a stage that has 1",
        ),
        (checked(Kind::GPipe, 3, 4), "a schedule of 3 stages and 1 replicas on the mesh 1x2x1"),
        (checked(Kind::GPipe, 2, 3), "a batch of 4 micro-batches for a schedule of 3"),
        (
            checked_on(Mesh { data: 2, ..Mesh::pipeline(2) }, Kind::GPipe, 4),
            "a schedule of 2 stages and 2 replicas on the mesh 1x2x1",
        ),
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
    let expected = "rank 1 failed: stage 1, micro-batch 2: Forward(2) of unit 1 failed: ";
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
    let expected = "stage 1, micro-batch 0: RecvActivation(0) of unit 1 failed: rank 1 waited 1.0 s: rank 0 is alive";
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

/// Rank 3 is the second stage of the second replica. Its second thread sums gradients with rank 1's.
#[test]
fn a_second_thread_that_fails_or_stalls_is_named_in_time() {
    let mesh: Mesh = "2x2x1".parse().unwrap();
    let (case, checked) = (dense(), checked_on(mesh, Kind::OneFOneB, 2));
    let told = |timeout, instead: fn() -> Result<(), CommError>| {
        let begin = Instant::now();
        let failure = run_ranks(&plan(4), timeout, |rank| {
            let second = if rank.rank() == 3 { instead } else { || Ok(()) };
            let (first, second) = (Arc::new(|| Ok(())), Arc::new(second));
            let all = Arc::new(Before { comm: rank.into(), first, second });
            let network =
                case.build(LAYERS[rank.rank() % 2].clone(), &Alone(Device::Cpu).into())?;
            let executor =
                Executor::new(&checked, vec![network], all, mesh, case.sample, Settings::IMAGES)?;
            let LocalBatch { shards, samples } = case.share(0, 8, 4);
            let shards = shards[executor.hosts().held].to_vec();
            executor.backward(&LocalBatch { shards, samples }).map(drop)
        });
        assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
        failure.unwrap_err().to_string()
    };
    let fails = told(TIMEOUT, || Err(CommError::Other("no route".to_owned())));
    assert_eq!(fails, "rank 3 failed: stage 1: Update of unit 1 failed: no route");
    let panics = told(TIMEOUT, || panic!("an error of this program"));
    let expected = "rank 3 failed: stage 1: Update of unit 1 failed: the background thread of this rank has ended";
    assert_eq!(panics, expected);
    let stalls = told(Duration::from_secs(3), || {
        std::thread::sleep(Duration::from_secs(6));
        Ok(())
    });
    // Rank 1 waits for the sum, and the first stages wait for rank 1. Each of them names the rank that stalls.
    assert!(stalls.contains("waited 3.0 s: rank 3 is alive"), "{stalls}");
}

/// The second stage does not fit the images.
#[test]
fn a_stage_that_fails_in_an_evaluation_is_named() {
    let checked = checked(Kind::GPipe, 2, 2);
    let failure = run_ranks(&plan(2), TIMEOUT, |rank| {
        let stage = rank.rank();
        let network = Network::new(1, DType::F64, &Device::Cpu, move |vb, _| {
            let weight = vb.get(CLASSES, &format!("weight{stage}"))?;
            Ok(move |x: &Tensor| match x.dim(0)? {
                3 if stage == 1 => candle_core::bail!("no more memory"),
                _ => flatten(x)?.narrow(1, 0, CLASSES)?.broadcast_mul(&weight),
            })
        })?;
        let mesh = Mesh::pipeline(2);
        let executor =
            Executor::new(&checked, vec![network], rank.into(), mesh, &SAMPLE, Settings::IMAGES)?;
        executor.evaluate(&images(BATCH + 3)).map(drop)
    });
    let told = failure.unwrap_err().to_string();
    let expected = "rank 1 failed: stage 1, evaluating, micro-batch 1: ForwardOnly(1) of unit 1 failed: no more memory";
    assert!(told.starts_with(expected), "{told}");
}
