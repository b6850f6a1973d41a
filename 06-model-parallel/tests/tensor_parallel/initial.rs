//! One seed, one model: whether it is cut between its layers or through them.

use candle_core::{DType, Device, Module, ModuleT, Result as TensorResult, Tensor};
use model_parallel::layers::Layers;
use model_parallel::tensor_parallel::dense::DenseStack;
use model_parallel::tensor_parallel::lenet::{Channels, LeNet};
use model_parallel::tensor_parallel::{Parts, TensorParallel};

use super::{assert_close, bits, fixed, on_ranks};

const SEED: u64 = 5;

/// The network in parts begins, put together, with the tensors of the layers.
fn compare<M: ModuleT + 'static>(
    layers: &Layers,
    build: impl Fn(&Parts<'_>) -> TensorResult<M> + Clone + Send + Sync + 'static,
) {
    let alone = layers.build(0..layers.len(), SEED, DType::F64, &Device::Cpu).unwrap();
    let expected = alone.weights().snapshot().unwrap();
    for ranks in [1, 2] {
        let joined = on_ranks(ranks, |group| {
            let build = build.clone();
            let model = TensorParallel::new(SEED, DType::F64, group, move |parts, _| build(parts))?;
            Ok(model.whole_weights()?)
        });
        for weights in joined {
            let names = weights.iter().map(|(name, _)| name);
            assert!(names.eq(expected.iter().map(|(name, _)| name)), "{ranks} ranks: {weights:?}");
            for ((name, here), (_, there)) in weights.iter().zip(&expected) {
                assert_eq!(here.dims(), there.dims(), "{ranks} ranks: {name}");
                assert!(bits(here) == bits(there), "{ranks} ranks: {name} has other values");
            }
        }
    }
}

#[test]
fn a_dense_stack_begins_with_the_weights_of_its_layers() {
    for widths in [&[12, 7][..], &[12, 9, 5], &[12, 9, 7, 10]] {
        compare(&Layers::dense(widths).unwrap(), move |parts| DenseStack::new(widths, parts));
    }
}

#[test]
fn lenet_begins_with_the_weights_of_its_layers() {
    for channels in [Channels::Gathered, Channels::Summed] {
        compare(&Layers::lenet(), move |parts| LeNet::new(channels, parts));
    }
}

/// Images need not be flattened for either, and both find the same logits.
#[test]
fn both_stacks_take_images() {
    const WIDTHS: &[usize] = &[784, 9, 10];
    let images = fixed("images", &[3, 1, 28, 28]);
    let flat = images.flatten_from(1).unwrap();
    let layers = Layers::dense(WIDTHS).unwrap();
    let alone = layers.build(0..layers.len(), SEED, DType::F64, &Device::Cpu).unwrap();
    let expected: Tensor = alone.forward(&images).unwrap();
    assert_eq!(bits(&alone.forward(&flat).unwrap()), bits(&expected));
    let logits = on_ranks(2, |group| {
        let build = |parts: &Parts<'_>, _: &_| DenseStack::new(WIDTHS, parts);
        let model = TensorParallel::new(SEED, DType::F64, group, build)?;
        let logits = model.forward(&images)?;
        assert_eq!(bits(&model.forward(&flat)?), bits(&logits));
        Ok(logits)
    });
    assert_eq!(expected.dims(), [3, 10]);
    logits.iter().for_each(|logits| assert_close(logits, &expected));
}
