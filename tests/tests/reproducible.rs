//! The same bits on any number of devices, with any number of threads each.
//!
//! With `TEST_DEVICE=cuda` all of it runs on GPUs, which replicas share if there are too few.

use std::num::NonZeroUsize;

use scratch_data_parallel::{Error, FixedTree, train_batch_reproducible};

use crate::prelude::*;

const SHARDS: usize = 8;
const STEPS: usize = 3;

fn batches(data: &Dataset, size: usize) -> Vec<Batch> {
    Loader::new(data, size, 1, DType::F32).epoch(1).collect::<Result<_, _>>().unwrap()
}

/// A step on this rank's shards of a batch.
fn step(
    rank: &Rank,
    model: &Lenet,
    batch: &Batch,
    rate: f64,
    shards: usize,
) -> Result<Step, Error> {
    let tree = FixedTree::new(shards, rank.world_size())?;
    let batch = local_batch(batch, shards, tree.held_by(rank.rank()))?;
    train_batch_reproducible(rank, model, &batch, rate, &tree)
}

/// The weights hash after all steps; every rank's must be the same.
fn hash(batches: &[Batch], plan: &DevicePlan) -> WeightsHash {
    let initial = with_large_weights(DType::F32);
    let hashes = run_ranks(plan, WAIT, |rank| {
        let model = Lenet::with_parameters(get_params(initial.parameters(), rank.device())?)?;
        for batch in batches {
            step(rank, &model, batch, 0.05, SHARDS)?;
        }
        Ok::<_, Error>(WeightsHash::new(&model.parameters().snapshot()?)?)
    });
    let hashes = hashes.unwrap();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    hashes[0]
}

#[test]
fn one_hash_for_any_number_of_devices_and_threads() {
    // 64 gives shards of 8; 77 gives shards of 9 and 10; 11 gives shards of 1 and 2.
    for size in [64, 77, 11] {
        let batches = batches(&synthetic::dataset(Split::Train, STEPS * size), size);
        let expected = hash(&batches, &plan(1));
        for devices in [1, 2, 3, 4, 5, 8] {
            assert_eq!(hash(&batches, &plan(devices)), expected, "batch {size}: {devices} devices");
            // Threads are a processor's.
            for threads in [2, 4].into_iter().filter(|_| !on_gpus()) {
                let kind = DeviceKind::Cpu;
                let plan = DevicePlan::new(kind, devices, NonZeroUsize::new(threads)).unwrap();
                let found = hash(&batches, &plan);
                assert_eq!(found, expected, "batch {size}: {devices} devices, {threads} threads");
            }
        }
    }
}

#[test]
fn one_bit_of_one_input_changes_the_hash() {
    let data = synthetic::dataset(Split::Train, STEPS * 64);
    let expected = hash(&batches(&data, 64), &plan(2));
    let mut pixels = data.bytes().to_vec();
    // A pixel in the middle of a garment, and its lowest bit.
    pixels[100 * PIXELS + 14 * 28 + 14] ^= 1;
    let data = Dataset::of_shape(pixels, SAMPLE, data.labels().to_vec(), CLASSES).unwrap();
    assert_ne!(hash(&batches(&data, 64), &plan(2)), expected);
}

#[test]
fn without_it_the_bits_do_depend_on_the_number_of_devices() {
    // Otherwise the first test would prove nothing.
    let batches = batches(&synthetic::dataset(Split::Train, STEPS * 64), 64);
    let hash = |devices| {
        let initial = with_large_weights(DType::F32);
        let hashes = run_ranks(&plan(devices), WAIT, |rank| {
            let model = Lenet::with_parameters(get_params(initial.parameters(), rank.device())?)?;
            for batch in &batches {
                let shard = local_batch(batch, devices, [rank.rank()])?;
                scratch_data_parallel::train_batch(rank, &model, &shard, 0.05, Algorithm::Ring)?;
            }
            Ok::<_, Error>(WeightsHash::new(&model.parameters().snapshot()?)?)
        });
        hashes.unwrap()[0]
    };
    assert_ne!(hash(1), hash(2));
}

#[test]
fn it_is_the_step_of_one_device_up_to_rounding() {
    let batch = &batches(&synthetic::dataset(Split::Train, 64), 64)[0];
    let one = Lenet::new(1, DType::F32, &Device::Cpu).unwrap();
    let expected = local_gradients(&one, batch).unwrap();
    let steps = run_ranks(&plan(3), WAIT, |rank| {
        let model = Lenet::new(1, DType::F32, rank.device())?;
        let mut step = step(rank, &model, batch, 0.5, SHARDS)?;
        step.gradients = on_the_cpu(&step.gradients)?;
        Ok::<_, Error>(step)
    });
    // A GPU's convolutions may be Winograd's: `equivalence.rs` has the bound.
    let tolerance = if on_gpus() { 1e-3 } else { 1e-5 };
    for step in steps.unwrap() {
        assert_eq!(step.sums.samples, 64);
        approx(step.sums.loss, expected.sums.loss, tolerance);
        for (found, expected) in step.gradients.iter().zip(&expected.gradients) {
            let error = ops::difference::relative_difference(found, expected).unwrap();
            assert!(error <= tolerance, "{error:.1e}");
        }
    }
}

fn approx(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance * expected.abs(), "{found} is not {expected}");
}

#[test]
fn fewer_shards_than_devices_are_refused() {
    let batch = &batches(&synthetic::dataset(Split::Train, 64), 64)[0];
    let outcome = run_ranks(&plan(3), WAIT, |rank| {
        let model = Lenet::new(1, DType::F32, rank.device())?;
        step(rank, &model, batch, 0.5, 2)
    });
    assert!(outcome.unwrap_err().to_string().contains("2 leaves"));
}
