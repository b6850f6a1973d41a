//! ResNet-18 in a pipeline: whose batch is it, and what becomes of the running statistics?

use ops::cross_entropy;

use super::numbers::{SAMPLES, equals};
use super::training::{CONSTANTS, Case, WIDTH, Weights, checked, cut, resnet18, sorted};
use crate::prelude::*;

/// One device that goes through the micro-batches one after the other: weights, and the loss at each step.
///
/// Running statistics are linear in the batch's own: (1 − 0.1) · before + 0.1 · batch. So what all
/// micro-batches together make of them is the mean of what each alone would have made of those before,
/// weighted by samples.
fn on_micro_batches(case: &Case, micro_batches: usize) -> (Weights, Vec<f64>) {
    let build = |vb: &VarBuilder<'_>, norms: &Norms| ResNet18::new(WIDTH, norms, vb);
    let network = Network::new(1, DType::F64, &Device::Cpu, build).unwrap();
    let (weights, mut sgd) = (network.weights(), Sgd::new(CONSTANTS));
    let buffers = || -> Weights {
        let all = weights.snapshot().unwrap();
        all[weights.parameters.len()..].to_vec()
    };
    let add = |sum: &mut Vec<Tensor>, terms: Vec<Tensor>| {
        let old = std::mem::take(sum);
        *sum = if old.is_empty() {
            terms
        } else {
            old.iter().zip(&terms).map(|(sum, term)| (sum + term).unwrap()).collect()
        };
    };
    let mut step = |step: usize| {
        let before = buffers();
        let (mut gradients, mut after, mut total) = (Vec::new(), Vec::new(), 0.0);
        for batch in case.share(step, SAMPLES, micro_batches).shards {
            if batch.is_empty() {
                continue;
            }
            weights.set(&before).unwrap();
            let logits = network.forward_training(&batch.images).unwrap();
            let loss = cross_entropy(&logits, &batch.labels).unwrap();
            add(&mut gradients, network.gradients(&loss).unwrap());
            let part = batch.len() as f64 / SAMPLES as f64;
            add(&mut after, buffers().iter().map(|(_, value)| (value * part).unwrap()).collect());
            total += loss.to_scalar::<f64>().unwrap();
        }
        let names = before.into_iter().map(|(name, _)| name);
        weights.set(&names.zip(after).collect::<Weights>()).unwrap();
        sgd.step(weights, &gradients, case.rate, SAMPLES).unwrap();
        total
    };
    let losses = (0..case.steps).map(&mut step).collect();
    (sorted(weights.snapshot().unwrap()), losses)
}

#[test]
fn resnet18_equals_one_device_on_the_same_micro_batches() {
    let case = resnet18();
    let mut largest = 0f64;
    for micro_batches in [3, 5, 8] {
        let expected = on_micro_batches(&case, micro_batches);
        for begins in ["1", "6", "1,3,8", "1,2,4,6,8"] {
            largest = largest.max(equals(&case, begins, micro_batches, &expected, 1e-8));
        }
    }
    println!("ResNet-18: {largest:e}");
}

#[test]
fn it_does_not_equal_one_device_on_the_whole_batch() {
    let (case, cut) = (Case { steps: 1, ..resnet18() }, cut("6", 10));
    let after = |micro_batches| {
        let checked = checked(Kind::OneFOneB, 2, micro_batches);
        case.pipeline(&checked, &cut, SAMPLES).0
    };
    let (whole, _) = case.on_one_device(SAMPLES);
    let apart = |micro_batches| largest_difference(&after(micro_batches), &whole).unwrap();
    assert!(apart(1) < 1e-12, "{:e}", apart(1));
    // Statistics of fewer images than the batch has: nothing that rounding could explain.
    for micro_batches in [2, 3, 7] {
        assert!(apart(micro_batches) > 0.1, "{micro_batches}: {:e}", apart(micro_batches));
    }
}

/// In the first step all micro-batches have the same weights, and the stem sees images: so its running
/// statistics can be told from the whole batch's. The mean is the same. Of the variance, the spread between
/// the micro-batches' means is missing.
#[test]
fn running_statistics_are_those_of_micro_batches_on_average() {
    let case = Case { steps: 1, ..resnet18() };
    let get = |weights: &Weights, name: &str| {
        weights.iter().find(|(other, _)| other == name).unwrap().1.clone()
    };
    let (whole, _) = case.on_one_device(SAMPLES);
    let expected = on_micro_batches(&case, 3).0;
    let checked = checked(Kind::GPipe, 2, 3);
    let (found, ..) = case.pipeline(&checked, &cut("1", 10), SAMPLES);
    let apart = |weights: &Weights, name| {
        relative_difference(&get(&found, name), &get(weights, name)).unwrap()
    };
    assert!(apart(&whole, "bn1.running_mean") < 1e-12);
    let variance = "bn1.running_var";
    assert!(apart(&expected, variance) < 1e-12, "{:e}", apart(&expected, variance));
    assert!(apart(&whole, variance) > 1e-4, "{:e}", apart(&whole, variance));
}
