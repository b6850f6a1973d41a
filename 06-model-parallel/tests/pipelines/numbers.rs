//! Over five steps, weights and losses are those of one device.

use model_parallel::Action::{
    Backward, Forward, RecvActivation, RecvGradient, SendActivation, SendGradient, Update,
};

use super::training::{
    Case, Weights, checked, checked_on, close, cut, dense, hash, lenet, resnet18,
};
use crate::prelude::*;

/// All kinds of schedules that execute a model of so many parts, each with its number of stages.
pub fn kinds(parts: usize, micro_batches: usize) -> Vec<(Kind, usize)> {
    let with_chunks = (2..=parts).filter(|chunks| parts.is_multiple_of(*chunks));
    let interleaved = with_chunks.map(|chunks| (Kind::Interleaved { chunks }, parts / chunks));
    let one_chunk =
        [Kind::Naive, Kind::GPipe, Kind::OneFOneB, Kind::ZbH1].map(|kind| (kind, parts));
    let all = one_chunk.into_iter().chain(interleaved);
    all.filter(|(kind, stages)| kind.check(*stages, micro_batches).is_ok()).collect()
}

/// Seven samples: in one piece, in micro-batches of two sizes, of one sample, and more than there are
/// samples.
pub const SAMPLES: usize = 7;

/// Trains with every schedule, cut where stages begin, and compares with `expected`: weights, and the loss at
/// each step. The largest difference, which is below `bound`.
pub fn equals(
    case: &Case,
    begins: &str,
    micro_batches: usize,
    expected: &(Weights, Vec<f64>),
    bound: f64,
) -> f64 {
    for ((name, before), (_, after)) in case.initial().iter().zip(&expected.0) {
        assert!(relative_difference(before, after).unwrap() > 1e-4, "{name} learns nothing");
    }
    let cut = cut(begins, case.layers.len());
    let outcomes = kinds(cut.len(), micro_batches).into_iter().map(|(kind, stages)| {
        let what = format!("{}, cut {begins}, {micro_batches} × {kind}", case.name);
        let checked = checked(kind, stages, micro_batches);
        let (found, steps, _) = case.pipeline(&checked, &cut, SAMPLES);
        let difference = close((&found, &steps), expected, bound, &what);
        (hash(&found), difference)
    });
    let outcomes: Vec<_> = outcomes.collect();
    let what = format!("{}, cut {begins}, {micro_batches} micro-batches", case.name);
    assert!(outcomes.iter().all(|(hash, _)| *hash == outcomes[0].0), "{what}: {outcomes:?}");
    outcomes.into_iter().map(|(_, difference)| difference).fold(0.0, f64::max)
}

/// The largest difference. `2,3` makes a stage of LeNet that only flattens.
fn equals_one_device(case: &Case, cuts: &[&str], micro_batches: &[usize]) -> f64 {
    let expected = case.on_one_device(SAMPLES);
    let pairs = cuts.iter().flat_map(|&begins| micro_batches.iter().map(move |&m| (begins, m)));
    pairs.map(|(begins, m)| equals(case, begins, m, &expected, 1e-10)).fold(0.0, f64::max)
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

/// One device adds the gradients and losses of the same micro-batches up: every schedule has its bits. Along the tree, every
/// schedule and every number of replicas has the bits of data parallelism with these micro-batches as shards.
#[test]
fn every_schedule_has_the_bits_of_one_device_and_of_data_parallelism() {
    for case in [lenet(), dense(), resnet18()] {
        for shards in [3, 8] {
            let running = case.on_micro_batches(SAMPLES, shards);
            let tree = case.data_parallel(1, SAMPLES, shards);
            for devices in [2, 4, 8].into_iter().filter(|&devices| devices <= shards) {
                same(&case.data_parallel(devices, SAMPLES, shards), &tree, case.name);
            }
            for begins in ["3", "1,2,4"] {
                let cut = cut(begins, case.layers.len());
                for (kind, stages) in kinds(cut.len(), shards) {
                    let checked = checked(kind, stages, shards);
                    let what = format!("{}, cut {begins}, {shards} shards, {kind}", case.name);
                    for (by_shards, expected) in [(false, &running), (true, &tree)] {
                        let mesh = Mesh::pipeline(stages);
                        let (weights, losses, _) =
                            case.on_mesh(mesh, &checked, &cut, SAMPLES, by_shards);
                        same(&(weights, losses), expected, &what);
                    }
                }
            }
        }
    }
}

/// Compares bits: those of the weights and of the losses.
#[track_caller]
pub fn same(found: &(Weights, Vec<f64>), expected: &(Weights, Vec<f64>), what: &str) {
    let bits = |(weights, losses): &(Weights, Vec<f64>)| {
        (hash(weights), losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>())
    };
    assert_eq!(bits(found), bits(expected), "{what}");
}

/// Replicas share the micro-batches out; the sums go on over all of them.
#[test]
fn the_bits_do_not_depend_on_the_number_of_replicas() {
    for case in [dense(), resnet18()] {
        let expected = case.data_parallel(1, SAMPLES, 8);
        for (kind, begins) in
            [(Kind::OneFOneB, "3"), (Kind::ZbH1, "3"), (Kind::Interleaved { chunks: 2 }, "1,2,4")]
        {
            let cut = cut(begins, case.layers.len());
            for data in [1, 2, 4] {
                let mesh = Mesh { data, ..Mesh::pipeline(2) };
                let checked = checked_on(mesh, kind, 8 / data);
                let (found, losses, _) = case.on_mesh(mesh, &checked, &cut, SAMPLES, true);
                same(&(found, losses), &expected, &format!("{}, {mesh}, {kind}", case.name));
            }
        }
    }
}

/// A schedule that nobody has a name for: all forward in another order than backward.
#[test]
fn any_schedule_that_is_sound_runs() {
    let list = |stage| -> Vec<Action> {
        let forward = [2, 0, 3, 1].into_iter().flat_map(|i| match stage {
            0 => vec![Forward(i), SendActivation(i)],
            _ => vec![RecvActivation(i), Forward(i)],
        });
        let backward = (0..4).flat_map(|i| match stage {
            0 => vec![RecvGradient(i), Backward(i)],
            _ => vec![Backward(i), SendGradient(i)],
        });
        forward.chain(backward).chain([Update]).collect()
    };
    let mixed = check(Schedule::of(2, 4, list), UNBOUNDED).unwrap();
    for case in [dense(), resnet18()] {
        let cut = cut("2", case.layers.len());
        let hash = |checked: &Checked| hash(&case.pipeline(checked, &cut, SAMPLES).0);
        assert_eq!(hash(&mixed), hash(&checked(Kind::OneFOneB, 2, 4)), "{}", case.name);
    }
}
