//! Lists of layers: the parts have what the whole has.

use candle_core::{Module as _, Result};
use single_gpu::lenet::Lenet;

use super::training::{WIDTH, Weights, cut, dense, lenet, resnet18};
use crate::prelude::*;

/// The initial weights of these layers.
fn weights(layers: &Layers, range: std::ops::Range<usize>) -> Weights {
    let network = layers.build(range, 1, DType::F64, &Device::Cpu).unwrap();
    network.weights().snapshot().unwrap()
}

#[test]
fn lenet_in_layers_is_lenet() {
    let layers = Layers::lenet();
    let whole = layers.build(0..layers.len(), 1, DType::F64, &Device::Cpu).unwrap();
    let expected = Lenet::new(1, DType::F64, &Device::Cpu).unwrap();
    let hash = |weights: &Weights| WeightsHash::new(weights).unwrap();
    let weights = whole.weights().snapshot().unwrap();
    assert_eq!(hash(&weights), hash(&expected.parameters().snapshot().unwrap()));
    let images = Tensor::randn(0f64, 1.0, (3, 1, 28, 28), &Device::Cpu).unwrap();
    let bits = |logits: Tensor| logits.to_vec2::<f64>().unwrap();
    assert_eq!(bits(whole.forward(&images).unwrap()), bits(expected.forward(&images).unwrap()));
}

#[test]
fn resnet18_in_layers_is_resnet18() {
    let layers = Layers::resnet18(WIDTH);
    let whole = layers.build(0..layers.len(), 1, DType::F64, &Device::Cpu).unwrap();
    let build = |vb: &VarBuilder<'_>, norms: &Norms| ResNet18::new(WIDTH, norms, vb);
    let expected = Network::new(1, DType::F64, &Device::Cpu, build).unwrap();
    let images = Tensor::randn(0f64, 1.0, (3, 1, 28, 28), &Device::Cpu).unwrap();
    let bits = |logits: Result<Tensor>| logits.unwrap().to_vec2::<f64>().unwrap();
    assert_eq!(bits(whole.forward_training(&images)), bits(expected.forward_training(&images)));
    // With the running statistics of the training above.
    assert_eq!(bits(whole.forward(&images)), bits(expected.forward(&images)));
    let (weights, expected) = (whole.weights().snapshot(), expected.weights().snapshot());
    let hash = |weights: Result<Weights>| WeightsHash::new(&weights.unwrap()).unwrap();
    assert_eq!(hash(weights), hash(expected));
}

#[test]
fn a_stage_builds_its_own_layers_and_no_others() {
    for case in [lenet(), dense(), resnet18()] {
        let layers = case.layers.len();
        let all = weights(&case.layers, 0..layers);
        for begins in ["1", "2,3", "1,2,4"] {
            let stages = cut(begins, layers);
            let parts: Vec<Weights> =
                stages.iter().map(|range| weights(&case.layers, range.clone())).collect();
            assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), all.len(), "{}", case.name);
            let hash = |weights: &Weights| WeightsHash::new(weights).unwrap();
            assert_eq!(hash(&parts.concat()), hash(&all), "{}, cut {begins}", case.name);
        }
    }
    // Flattening has no weights.
    assert_eq!(weights(&lenet().layers, 2..3).len(), 0);
}

#[test]
fn layers_that_are_not_there_are_refused() {
    let told = |range| {
        let built = Layers::lenet().build(range, 1, DType::F32, &Device::Cpu);
        built.err().unwrap().to_string()
    };
    for range in [3..6, 5..5, 2..2] {
        let expected = format!("there are no layers {range:?} in a model of 5");
        assert!(told(range).contains(&expected));
    }
    for widths in [&[][..], &[3], &[3, 0, 2]] {
        let told = Layers::dense(widths).err().unwrap().to_string();
        assert!(told.contains("a dense stack has at least two widths, none of them 0"), "{told}");
    }
}
