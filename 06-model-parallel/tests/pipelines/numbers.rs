//! Over five steps, weights and losses are those of one device.

use model_parallel::pipeline::channel::UNBOUNDED;
use model_parallel::pipeline::schedule::Action::{self, Backward, Forward, RecvActivation};
use model_parallel::pipeline::schedule::Action::{
    RecvGradient, SendActivation, SendGradient, Update,
};
use model_parallel::pipeline::{Kind, Schedule, check};
use single_gpu::difference::{largest_difference, relative_difference};
use single_gpu::weights_hash::WeightsHash;

use crate::training::{Case, checked, cut, dense, lenet};

const KINDS: [Kind; 3] = [Kind::Naive, Kind::GPipe, Kind::OneFOneB];

/// Seven samples: in one piece, in micro-batches of two sizes, of one sample, and more than there are
/// samples.
const SAMPLES: usize = 7;

/// The largest difference. Layers are cut where stages begin: `2,3` makes a stage of LeNet that only flattens.
fn equals_one_device(case: &Case, cuts: &[&str], micro_batches: &[usize]) -> f64 {
    let (expected, losses) = case.on_one_device(SAMPLES);
    for ((name, before), (_, after)) in case.initial().iter().zip(&expected) {
        assert!(relative_difference(before, after).unwrap() > 1e-4, "{name} learns nothing");
    }
    let mut largest = 0f64;
    for begins in cuts {
        let cut = cut(begins, case.layers.len());
        for &micro_batches in micro_batches {
            let hashes = KINDS.map(|kind| {
                let what = format!("{}, cut {begins}, {micro_batches} × {kind}", case.name);
                let checked = checked(kind, cut.len(), micro_batches);
                let (weights, steps) = case.pipeline(&checked, &cut, SAMPLES).unwrap();
                let difference = largest_difference(&weights, &expected).unwrap();
                assert!(difference < 1e-10, "{what}: {difference:e}");
                largest = largest.max(difference);
                for (done, loss) in steps.last().unwrap().iter().zip(&losses) {
                    let sums = done.sums.unwrap();
                    assert!((sums.loss / loss - 1.0).abs() < 1e-10, "{what}: {}", sums.loss);
                    assert_eq!(sums.samples, SAMPLES as u64, "{what}");
                }
                WeightsHash::new(&weights).unwrap()
            });
            let what = format!("{}, cut {begins}, {micro_batches} micro-batches", case.name);
            assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{what}: {hashes:?}");
        }
    }
    largest
}

#[test]
fn lenet_equals_one_device() {
    println!("LeNet: {:e}", equals_one_device(&lenet(), &["4", "2,3", "1,2,4"], &[3, 4, 8]));
}

#[test]
fn a_dense_stack_equals_one_device() {
    println!(
        "dense stack: {:e}",
        equals_one_device(&dense(), &["", "1", "4", "2,3", "1,4", "1,2,4"], &[1, 2, 3, 4, 7, 8])
    );
}

/// The micro-batches are the shards: then it does not matter which of the two is split, batch or model.
#[test]
fn the_bits_are_those_of_data_parallelism() {
    for case in [lenet(), dense()] {
        for shards in [3, 8] {
            let expected = case.data_parallel(1, SAMPLES, shards);
            assert_eq!(case.data_parallel(2, SAMPLES, shards), expected);
            for begins in ["3", "1,2,4"] {
                let cut = cut(begins, case.layers.len());
                let checked = checked(Kind::OneFOneB, cut.len(), shards);
                let (weights, _) = case.pipeline(&checked, &cut, SAMPLES).unwrap();
                let hash = WeightsHash::new(&weights).unwrap();
                assert_eq!(hash, expected, "{}, cut {begins}, {shards} shards", case.name);
            }
        }
    }
}

/// A schedule that nobody has a name for: all forward in one order, backward in another.
#[test]
fn any_schedule_that_is_sound_runs() {
    let list = |stage| -> Vec<Action> {
        let forward = [2, 0, 3, 1].into_iter().flat_map(|i| match stage {
            0 => vec![Forward(i), SendActivation(i)],
            _ => vec![RecvActivation(i), Forward(i)],
        });
        let backward = [1, 3, 0, 2].into_iter().flat_map(|i| match stage {
            0 => vec![RecvGradient(i), Backward(i)],
            _ => vec![Backward(i), SendGradient(i)],
        });
        forward.chain(backward).chain([Update]).collect()
    };
    let mixed = check(Schedule::of(2, 4, list), UNBOUNDED).unwrap();
    let (case, cut) = (dense(), cut("2", 5));
    let hash =
        |checked| WeightsHash::new(&case.pipeline(checked, &cut, SAMPLES).unwrap().0).unwrap();
    assert_eq!(hash(&mixed), hash(&checked(Kind::OneFOneB, 2, 4)));
}
