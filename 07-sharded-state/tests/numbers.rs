//! Every strategy has the numbers of one device.

use candle_nn::func;
use candle_nn::init::Init;
use concise_wrapper::ddp::Reduction;
use concise_wrapper::ddp::bucket::BucketCaps;
use model_parallel::execute::Settings;
use model_parallel::layers::Layers;
use ops::difference::largest_difference;
use ops::linear;
use params_and_allreduce::Algorithm;
use sharded_state::{Sharing, Strategy};

use crate::cases::{CASE, Case, Net, Trained, Updates, values};

pub const SHARINGS: [Sharing; 4] = [Sharing::Ddp, Sharing::Zero1, Sharing::Zero2, Sharing::Zero3];

/// All strategies.
pub fn strategies() -> Vec<Strategy> {
    let mut all = Vec::new();
    for sharing in SHARINGS {
        for prefetches in [false, true] {
            for recomputes in [None, Some(1), Some(2)] {
                if !prefetches || sharing == Sharing::Zero3 {
                    all.push(Strategy { sharing, prefetches, recomputes });
                }
            }
        }
    }
    all
}

/// The strategies that recompute nothing.
pub fn without_recomputation() -> impl Iterator<Item = Strategy> {
    strategies().into_iter().filter(|strategy| strategy.recomputes.is_none())
}

fn close(found: &Trained, expected: &Trained, bound: f64, what: &str) {
    for (found, expected) in [(&found.weights, &expected.weights), (&found.state, &expected.state)]
    {
        let difference = largest_difference(found, expected).unwrap();
        assert!(difference < bound, "{what}: {difference:e}");
    }
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        assert!((found / expected - 1.0).abs() < bound, "{what}: {found} {expected}");
    }
}

#[track_caller]
pub fn same(found: &Trained, expected: &Trained, what: &str) {
    assert_eq!(values(&found.weights), values(&expected.weights), "{what}");
    assert_eq!(values(&found.state), values(&expected.state), "{what}");
    assert_eq!(found.losses, expected.losses, "{what}");
}

pub fn equals_one_device(case: &Case, strategies: impl IntoIterator<Item = Strategy>, bound: f64) {
    let alone = case.alone();
    for strategy in strategies {
        close(&case.train(strategy), &alone, bound, &format!("{case:?} {strategy:?}"));
    }
}

#[test]
fn every_strategy_equals_one_device() {
    for updates in [Updates::Momentum, Updates::AdamW] {
        for ranks in 1..=4 {
            for micro_batches in 1..=4 {
                let case = Case { updates, ranks, micro_batches, ..CASE };
                equals_one_device(&case, strategies(), 1e-10);
            }
        }
    }
}

/// Each rank has a chunk of its part of each layer. The widths are odd, so the parts differ in size.
#[test]
fn every_strategy_equals_one_device_on_a_mesh_with_a_tensor_axis() {
    for updates in [Updates::Momentum, Updates::AdamW] {
        let case = Case { updates, parts: 2, ..CASE };
        equals_one_device(&case, strategies(), 1e-10);
        let case = Case { ranks: 3, micro_batches: 1, ..case };
        equals_one_device(&case, without_recomputation(), 1e-10);
    }
    equals_one_device(&Case { ranks: 1, parts: 3, ..CASE }, strategies(), 1e-10);
}

/// The heads and the vocabulary are cut along the tensor axis.
#[test]
fn a_gpt_equals_one_device_on_every_mesh() {
    for (ranks, parts, samples) in [(2, 1, 7), (2, 2, 7), (2, 2, 3), (3, 2, 4), (1, 4, 5)] {
        let case = Case { net: Net::Gpt, rate: 0.01, ranks, parts, samples, ..CASE };
        equals_one_device(&case, strategies(), 1e-10);
    }
}

/// Seven samples in eight micro-batches, and two in six: ranks with nothing at all.
#[test]
fn micro_batches_may_be_empty() {
    for (samples, ranks, micro_batches) in [(7, 2, 4), (2, 3, 2), (1, 2, 1)] {
        let case = Case { samples, ranks, micro_batches, ..CASE };
        equals_one_device(&case, strategies(), 1e-10);
    }
}

/// A unit may have no parameters, or fewer than there are ranks.
#[test]
fn units_may_have_nothing_to_share() {
    let tiny = Net::Dense(&[3, 1, 1, 10]);
    for net in [Net::Pooled, tiny] {
        for updates in [Updates::Momentum, Updates::AdamW] {
            let case = Case { net, samples: 7, steps: 3, updates, ..CASE };
            equals_one_device(&case, strategies(), 1e-10);
            equals_one_device(&Case { ranks: 4, ..case }, without_recomputation(), 1e-10);
        }
    }
}

#[test]
fn layers_may_be_frozen() {
    for frozen in [&[0][..], &[0, 1], &[2], &[1, 4], &[0, 1, 2, 3]] {
        let case = Case { frozen, samples: 7, steps: 3, ..CASE };
        equals_one_device(&case, strategies(), 1e-10);
        // The first layer has nothing to train, or all before the last one.
        if frozen != [1, 4] {
            let case = Case { net: Net::Pooled, ..case };
            equals_one_device(&case, without_recomputation(), 1e-10);
        }
    }
}

/// candle computes the gradients then, and knows the row of a unit in place of its parameters.
#[test]
fn layers_may_use_operations_that_are_not_on_the_tape() {
    let layers = || {
        Layers::dense(&[6, 9]).unwrap().then(|builder| {
            let weight = builder.get("weight", &[9, 10], Init::Const(0.1), None)?;
            let bias = builder.get("bias", &[10], Init::Const(0.2), None)?;
            Ok(func(move |x| linear(x, &weight, &bias)?.tanh()))
        })
    };
    let case = Case { net: Net::Made(layers, &[6]), steps: 3, ..CASE };
    equals_one_device(&case, strategies(), 1e-10);
}

#[test]
fn lenet_equals_one_device() {
    let case = Case { net: Net::Lenet, samples: 7, steps: 2, ..CASE };
    equals_one_device(&case, strategies(), 1e-10);
    equals_one_device(&Case { ranks: 3, ..case }, without_recomputation(), 1e-10);
}

/// The running statistics, too.
#[test]
fn resnet18_equals_one_device_on_the_same_micro_batches() {
    let updates = Updates::Momentum;
    let case = Case { net: Net::ResNet18, samples: 7, steps: 3, updates, ..CASE };
    equals_one_device(&case, without_recomputation(), 1e-8);
    let empty = Case { samples: 3, ..case };
    equals_one_device(&empty, without_recomputation(), 1e-8);
}

#[test]
fn a_batch_norm_is_not_recomputed() {
    let case = Case { net: Net::ResNet18, ..CASE };
    for sharing in SHARINGS {
        let strategy = Strategy { sharing, prefetches: false, recomputes: Some(3) };
        let lists = vec![case.schedule(strategy); 2];
        let told = case.train_lists(sharing == Sharing::Ddp, &lists).unwrap_err();
        let expected = "unit 0 has the batch norm of bn1.running_mean, which would count its batch twice: do not \
                        recompute this unit";
        assert!(told.contains(expected), "{told}");
    }
    // The head has no batch norm.
    let strategy = Strategy { sharing: Sharing::Zero3, prefetches: true, recomputes: Some(9) };
    let mut schedule = case.schedule(strategy);
    let plain = case.schedule(Strategy { recomputes: None, ..strategy });
    schedule.lists = plain.lists;
    case.train_lists(false, &vec![schedule; 2]).unwrap();
}

#[test]
fn prefetch_and_recomputation_change_no_bit() {
    for ranks in [2, 3] {
        let case = Case { ranks, ..CASE };
        for strategy in strategies() {
            let plain = strategy.sharing.plain();
            same(&case.train(strategy), &case.train(plain), &format!("{strategy:?}"));
        }
    }
}

/// One-shot adds in the order of the ranks, however gradients are joined in buckets. Between two ranks each algorithm has the
/// same bits.
#[test]
fn the_list_of_ddp_has_the_bits_of_the_wrapper() {
    let ddp = Sharing::Ddp.plain();
    let all = [(1, Algorithm::OneShot), (2, Algorithm::OneShot), (2, Algorithm::Ring)];
    let all = all.into_iter().chain([3, 4].map(|ranks| (ranks, Algorithm::OneShot)));
    for (ranks, algorithm) in all {
        let settings = Settings { algorithm, ..CASE.settings };
        for updates in [Updates::Momentum, Updates::AdamW] {
            let case = Case { ranks, settings, updates, micro_batches: 1, ..CASE };
            let cases = [
                case,
                Case { frozen: &[0, 1], ..case },
                Case { net: Net::Pooled, ..case },
                Case { net: Net::Lenet, steps: 2, ..case },
            ];
            for case in cases {
                let caps = BucketCaps::default();
                let wrapped = case.wrapped(Reduction::Buckets { caps, algorithm, overlap: true });
                same(&case.train(ddp), &wrapped, &format!("{case:?}"));
            }
        }
    }
}

/// Along the tree of shards, with several micro-batches, and with the batch norms of shards.
#[test]
fn the_list_of_ddp_has_the_bits_of_the_wrapper_by_shards() {
    let ddp = Sharing::Ddp.plain();
    for (ranks, micro_batches) in [(1, 4), (2, 2), (4, 1), (2, 3)] {
        let settings = Settings { by_shards: true, ..CASE.settings };
        let case = Case { ranks, micro_batches, settings, ..CASE };
        let resnet = Case { net: Net::ResNet18, updates: Updates::Momentum, steps: 2, ..case };
        for case in [case, Case { samples: 3, ..case }, resnet] {
            let wrapped = case.wrapped(Reduction::Reproducible { shards: ranks * micro_batches });
            same(&case.train(ddp), &wrapped, &format!("{case:?}"));
        }
    }
}
