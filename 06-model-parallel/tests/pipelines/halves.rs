//! The backward pass of a network in two halves: the bits of the whole.

use ops::backward::{Gradients, SecondHalf, backward_from, backward_in_halves};

use super::training::{Case, dense, lenet, resnet18};
use crate::prelude::*;

fn bits(tensor: &Tensor) -> Vec<u64> {
    let values = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
    values.to_vec1::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
}

#[test]
fn both_halves_together_have_the_bits_of_the_whole() {
    for Case { name, layers, sample, .. } in [lenet(), dense(), resnet18()] {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let network = layers.build(0..layers.len(), 1, dtype, &Device::Cpu).unwrap();
            let shape = [&[3], sample].concat();
            let x = Tensor::randn(0f64, 1.0, shape, &Device::Cpu).unwrap();
            let x = Var::from_tensor(&x.to_dtype(network.dtype()).unwrap()).unwrap();
            let y = network.forward_training(&x).unwrap();
            let gradient = y.ones_like().unwrap();
            let whole = backward_from(&y, &gradient).unwrap();
            // Several micro-batches are between their halves at one time.
            let (first, second) = backward_in_halves(&y, &gradient).unwrap();
            let (other, other_second) = backward_in_halves(&y, &gradient).unwrap();
            assert!(second.bytes() > 0);
            let of_input = |gradients: &Gradients| bits(gradients.get(&x).unwrap());
            assert_eq!(of_input(&first), of_input(&whole), "{name}, {dtype:?}");
            let both = |mut first: Gradients, second: SecondHalf| {
                first.extend(second.run().unwrap());
                network.parameter_gradients(&first).unwrap()
            };
            let (found, again) = (both(first, second), both(other, other_second));
            let expected = network.parameter_gradients(&whole).unwrap();
            for ((found, again), expected) in found.iter().zip(&again).zip(&expected) {
                assert_eq!(bits(found), bits(expected), "{name}, {dtype:?}");
                assert_eq!(bits(again), bits(expected), "{name}, {dtype:?}");
            }
        }
    }
}
