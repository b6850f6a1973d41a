//! k devices equal one, after every step: the loss, every gradient, every parameter.
//!
//! In f64 only the order of additions differs between one device and k, so a relative difference of
//! 1e-10 of a tensor's largest entry is far above rounding (about 1e-15 a step) and far below what any
//! real mistake does. The batch of 50 is cut into unequal shards by 3, 4 and 7.
//!
//! A test like this is worth only what it catches: each known way to get data parallelism wrong is run
//! through the same comparison, and must be found, or end with an error that names the rank.
//!
//! With `TEST_DEVICE=cuda` all of it runs on GPUs, which replicas share if there are too few.

use scratch_data_parallel::breakage::{Breakage, train_batch_broken};
use scratch_data_parallel::{Error, train_batch};
use single_gpu::train;

use crate::prelude::*;

const STEPS: usize = 5;
const BATCH: usize = 50;
const RATE: f64 = 0.2;
const OPTIONS: TrainOptions =
    TrainOptions { epochs: 1, batch_size: BATCH, learning_rate: RATE, seed: 1 };

/// How many devices. To open a GPU takes longer than to train on it here.
fn counts() -> &'static [usize] {
    if on_gpus() { &[1, 2, 4] } else { &[1, 2, 3, 4, 7] }
}

/// Those of the course; on GPUs those that add whole tensors, and chunks.
fn algorithms() -> impl Iterator<Item = Algorithm> {
    let on_gpus = on_gpus();
    let few = [Algorithm::OneShot, Algorithm::Ring];
    Algorithm::OURS.into_iter().filter(move |algorithm| !on_gpus || few.contains(algorithm))
}

/// Of a step in f32. cuDNN may take another algorithm for a shard than for the batch, and one of Winograd's errs by up to
/// 25 · 256 · 2⁻²⁴ of the terms that it adds up, as the tests of its products have it; there are two such layers.
fn tolerance_in_f32() -> f64 {
    if on_gpus() { 1e-3 } else { 1e-5 }
}

/// What one step left behind, in CPU memory.
struct Trace {
    step: Step,
    weights: Vec<(String, Tensor)>,
}

impl Trace {
    fn of(mut step: Step, model: &Lenet) -> candle_core::Result<Self> {
        step.gradients = on_the_cpu(&step.gradients)?;
        Ok(Self { step, weights: model.parameters().snapshot()? })
    }
}

/// The batches of all steps: garments, 50 each, shuffled. (With equally many of each class the gradient
/// of the last bias nearly cancels at the start, and f32 would compare rounding with rounding.)
fn batches(dtype: DType) -> Vec<Batch> {
    batches_of(&OPTIONS, dtype)
}

fn batches_of(options: &TrainOptions, dtype: DType) -> Vec<Batch> {
    let data = synthetic::dataset(Split::Train, STEPS * BATCH);
    let loader = Loader::new(&data, options.batch_size, options.seed, dtype);
    let epochs = (1..=options.epochs).flat_map(|epoch| loader.epoch(epoch));
    epochs.collect::<Result<_, _>>().unwrap()
}

fn initial(dtype: DType) -> Lenet {
    Lenet::new(1, dtype, &Device::Cpu).unwrap()
}

/// Stage 1's own step: it knows nothing of other devices.
fn on_one_device(dtype: DType) -> Vec<Trace> {
    let values = get_params(initial(dtype).parameters(), &device()).unwrap();
    let model = Lenet::with_parameters(values).unwrap();
    let step = |batch: &Batch| {
        let batch = batch.to_device(&device()).unwrap();
        let step = local_gradients(&model, &batch).unwrap();
        let sums = train::train_batch(&model, &batch, RATE).unwrap().read().unwrap();
        assert_eq!(sums, step.sums);
        Trace::of(step, &model).unwrap()
    };
    batches(dtype).iter().map(step).collect()
}

fn on_devices(devices: usize, dtype: DType, algorithm: Algorithm) -> Vec<Vec<Trace>> {
    on_devices_with(devices, dtype, algorithm, None).unwrap()
}

/// Every rank's trace, or why the run ended before its end.
fn on_devices_with(
    devices: usize,
    dtype: DType,
    algorithm: Algorithm,
    breakage: Option<Breakage>,
) -> Result<Vec<Vec<Trace>>, RankFailure<Error>> {
    let initial = initial(dtype);
    run_ranks(&plan(devices), WAIT, |rank| {
        let options = match breakage {
            Some(breakage) => breakage.options(OPTIONS, rank.rank(), devices),
            None => OPTIONS,
        };
        let model = Lenet::with_parameters(get_params(initial.parameters(), rank.device())?)?;
        let step = |batch: &Batch| {
            let index = if breakage == Some(Breakage::SameShard) { 0 } else { rank.rank() };
            let shard = local_batch(batch, devices, [index])?;
            let step = match breakage {
                None => train_batch(rank, &model, &shard, RATE, algorithm)?,
                Some(breakage) => {
                    train_batch_broken(rank, &model, &shard, RATE, algorithm, breakage)?
                }
            };
            Ok::<_, Error>(Trace::of(step, &model)?)
        };
        batches_of(&options, dtype).iter().map(step).collect::<Result<Vec<_>, _>>()
    })
}

/// What a run with a bug says when it ends before its end, as it does if ranks wait for what never comes; `None`
/// for a bug that trains.
fn named(breakage: Breakage, devices: usize) -> Option<String> {
    match breakage {
        Breakage::LeaveEarly => Some(format!("rank {} returned early", devices - 1)),
        Breakage::LoneBroadcast => Some("rank 0 sent F64 [], but rank".to_owned()),
        _ => None,
    }
}

/// The first thing in which two traces differ by more than the tolerance, and by how much.
fn first_difference(found: &[Trace], expected: &[Trace], tolerance: f64) -> Option<String> {
    // Written so that NaN counts as a difference.
    let apart = |what: String, error: f64| {
        let within = error <= tolerance;
        (!within).then(|| format!("{what} differs by {error:.1e}"))
    };
    for (number, (found, expected)) in (1..).zip(found.iter().zip(expected)) {
        let (ours, theirs) = (found.step.sums, expected.step.sums);
        let loss = (ours.loss - theirs.loss).abs() / theirs.loss.abs();
        if let Some(what) = apart(format!("step {number}: the loss"), loss) {
            return Some(what);
        }
        if ours.samples != theirs.samples || ours.correct != theirs.correct {
            return Some(format!("step {number}: {ours:?} is not {theirs:?}"));
        }
        for (kind, ours, theirs) in [
            ("gradient", &found.step.gradients, &expected.step.gradients),
            ("parameter", &values(found), &values(expected)),
        ] {
            assert_eq!(ours.len(), theirs.len());
            for (((name, _), ours), theirs) in expected.weights.iter().zip(ours).zip(theirs) {
                let error = relative_difference(ours, theirs).unwrap();
                if let Some(what) = apart(format!("step {number}: {kind} {name}"), error) {
                    return Some(what);
                }
            }
        }
    }
    assert_eq!(found.len(), expected.len());
    None
}

fn values(trace: &Trace) -> Vec<Tensor> {
    trace.weights.iter().map(|(_, value)| value.clone()).collect()
}

#[test]
// ANCHOR: k_devices_equal_one
fn k_devices_equal_one_in_f64() {
    let expected = on_one_device(DType::F64);
    assert_eq!(expected.len(), STEPS);
    for algorithm in algorithms() {
        for &devices in counts() {
            let traces = on_devices(devices, DType::F64, algorithm);
            for (rank, trace) in traces.iter().enumerate() {
                let difference = first_difference(trace, &expected, 1e-10);
                assert_eq!(difference, None, "{algorithm}, rank {rank} of {devices}");
            }
        }
    }
}
// ANCHOR_END: k_devices_equal_one

#[test]
fn in_f32_one_step_stays_within_its_rounding_and_replicas_agree_bitwise() {
    let expected = on_one_device(DType::F32);
    for algorithm in algorithms() {
        for &devices in counts() {
            let traces = on_devices(devices, DType::F32, algorithm);
            for trace in &traces {
                // One step only: f32 trajectories part, and longer comparisons prove nothing.
                let (found, expected) = (&trace[..1], &expected[..1]);
                let difference = first_difference(found, expected, tolerance_in_f32());
                assert_eq!(difference, None, "{algorithm}, {devices} devices");
            }
            for step in 0..STEPS {
                let hash = |trace: &Vec<Trace>| WeightsHash::new(&trace[step].weights).unwrap();
                let hashes: Vec<_> = traces.iter().map(hash).collect();
                let agree = hashes.iter().all(|hash| *hash == hashes[0]);
                assert!(agree, "{algorithm}, step {step}: {hashes:?}");
            }
        }
    }
}

#[test]
fn more_devices_than_samples_is_still_exact() {
    // A last batch of three on seven devices: four of them have nothing to do but take part.
    let few = batches(DType::F64)[0].clone();
    let few = Batch {
        images: few.images.narrow(0, 0, 3).unwrap(),
        labels: few.labels.narrow(0, 0, 3).unwrap(),
    };
    let one = initial(DType::F64);
    train::train_batch(&one, &few, RATE).unwrap();
    let expected = one.parameters().snapshot().unwrap();
    let start = initial(DType::F64);
    for algorithm in algorithms() {
        let found = run_ranks(&plan(7), WAIT, |rank| {
            let model = Lenet::with_parameters(get_params(start.parameters(), rank.device())?)?;
            train_batch(rank, &model, &local_batch(&few, 7, [rank.rank()])?, RATE, algorithm)?;
            Ok::<_, Error>(model.parameters().snapshot()?)
        });
        for weights in found.unwrap() {
            for ((name, found), (_, expected)) in weights.iter().zip(&expected) {
                let error = relative_difference(found, expected).unwrap();
                assert!(error <= 1e-10, "{algorithm}, {name}: {error:.1e}");
            }
        }
    }
}

#[test]
fn every_known_mistake_is_found() {
    let expected = on_one_device(DType::F64);
    for breakage in Breakage::all() {
        // The mistakes lie outside the all-reduce; each algorithm meets each of them once.
        let each = counts()[1..].iter().copied().zip(Algorithm::OURS.into_iter().cycle());
        for (devices, algorithm) in each {
            let run = on_devices_with(devices, DType::F64, algorithm, Some(breakage));
            if let Some(named) = named(breakage, devices) {
                let told = run.err().map(|failure| failure.to_string()).unwrap_or_default();
                assert!(told.contains(&named), "{breakage:?}, {devices} devices: {told:?}");
                continue;
            }
            for (rank, trace) in run.unwrap().iter().enumerate() {
                let difference = first_difference(trace, &expected, 1e-10);
                assert!(difference.is_some(), "{breakage:?} on rank {rank} of {devices} unnoticed");
            }
        }
    }
}

#[test]
fn every_known_mistake_is_found_in_f32_within_one_step() {
    let expected = on_one_device(DType::F32);
    for breakage in Breakage::all().filter(|bug| named(*bug, 2).is_none()) {
        let traces = on_devices_with(2, DType::F32, Algorithm::Ring, Some(breakage)).unwrap();
        let trace = &traces[0];
        let difference = first_difference(&trace[..1], &expected[..1], tolerance_in_f32());
        assert!(difference.is_some(), "{breakage:?} unnoticed");
    }
}
