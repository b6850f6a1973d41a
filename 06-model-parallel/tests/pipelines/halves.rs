//! The backward pass of a network in two halves: the bits of the whole.

use candle_core::{DType, Device, Tensor, Var};

use super::training::{Case, dense, lenet, resnet18};

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
            let (expected, others) = network.all_gradients(&y, &gradient).unwrap();
            // Several micro-batches are between their halves at one time.
            let (first, half) = network.backward_input(&y, &gradient).unwrap();
            let (_, other) = network.backward_input(&y, &gradient).unwrap();
            assert!(half.bytes() > 0);
            let (half, other) =
                (network.backward_weight(half).unwrap(), network.backward_weight(other).unwrap());
            let of_input = |gradients: &ops::backward::Gradients| bits(gradients.get(&x).unwrap());
            assert_eq!(of_input(&first), of_input(&others), "{name}, {dtype:?}");
            for ((found, again), expected) in half.iter().zip(&other).zip(&expected) {
                assert_eq!(bits(found), bits(expected), "{name}, {dtype:?}");
                assert_eq!(bits(again), bits(expected), "{name}, {dtype:?}");
            }
        }
    }
}
