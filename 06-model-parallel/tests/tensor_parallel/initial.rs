//! One seed, one model: whether the model is cut between its layers or through them.

use candle_core::Module;
use ops::backward::is_recorded;

use super::{SEED, assert_close, bits, fixed, on_ranks};
use crate::prelude::*;

/// The parts, joined, begin with the tensors of one device.
#[test]
fn a_network_in_parts_begins_with_the_weights_of_its_layers() {
    let dense = [&[12, 7][..], &[12, 9, 5], &[12, 9, 7, 10]].map(Layers::dense).map(Result::unwrap);
    for layers in dense {
        let alone = layers.build(0..layers.len(), SEED, DType::F64, &Device::Cpu).unwrap();
        let expected = alone.weights().snapshot().unwrap();
        for ranks in [1, 2] {
            let joined = on_ranks(ranks, |_, group| {
                let all = 0..layers.len();
                let part = layers.build_part(all, SEED, DType::F64, &Device::Cpu, group)?;
                Ok(layers.join(part.weights().snapshot()?, group)?)
            });
            for weights in joined {
                let names = weights.iter().map(|(name, _)| name);
                assert!(names.eq(expected.iter().map(|(name, _)| name)), "{weights:?}");
                for ((name, here), (_, there)) in weights.iter().zip(&expected) {
                    assert_eq!(here.dims(), there.dims(), "{ranks} ranks: {name}");
                    assert!(bits(here) == bits(there), "{ranks} ranks: {name} has other values");
                }
            }
        }
    }
}

/// Images need not be flattened, and a part finds the logits of one device.
#[test]
fn a_stack_takes_images() {
    let images = fixed("images", &[3, 1, 28, 28]);
    let flat = images.flatten_from(1).unwrap();
    let layers = Layers::dense(&[784, 9, 10]).unwrap();
    let alone = layers.build(0..layers.len(), SEED, DType::F64, &Device::Cpu).unwrap();
    let expected: Tensor = alone.forward(&images).unwrap();
    assert_eq!(bits(&alone.forward(&flat).unwrap()), bits(&expected));
    let logits = on_ranks(2, |_, group| {
        let part = layers.build_part(0..2, SEED, DType::F64, &Device::Cpu, group)?;
        let logits = part.forward(&images)?;
        assert_eq!(bits(&part.forward(&flat)?), bits(&logits));
        let recorded = is_recorded(&part.forward_training(&images)?);
        assert!(recorded, "its backward pass is not left to candle");
        Ok(logits)
    });
    assert_eq!(expected.dims(), [3, 10]);
    logits.iter().for_each(|logits| assert_close(logits, &expected));
}
