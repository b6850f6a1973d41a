//! The first step of a training, where more is exactly zero than ever after: garments before black, biases of zero.
//!
//! Noise for images, as in the other tests, has no black, and a kernel that looks at noise never sees nothing but
//! zeros. Here most of LeNet's do, and their relu stands exactly on its kink.

use crate::prelude::*;

/// Names and gradients of LeNet's parameters as they begin, for a batch of garments.
fn first_gradients(dtype: DType) -> Vec<(String, Tensor)> {
    let data = synthetic::dataset(Split::Train, 64);
    let indices: Vec<u32> = (0..).take(data.len()).collect();
    let model = Lenet::new(1, dtype, &Device::Cpu).unwrap();
    let batch = data.batch(&indices, dtype).unwrap();
    let gradients = local_gradients(&model, &batch).unwrap().gradients;
    let names = model.parameters().iter().map(|parameter| parameter.name.clone());
    names.zip(gradients).collect()
}

/// Images and weights differ by no more than rounding, and zeros not at all. Were something nearly zero there, it would
/// have another sign in each, and the relu would let other gradients through.
// ANCHOR: first_step
#[test]
fn its_gradients_in_f32_are_those_in_f64() {
    let wide = first_gradients(DType::F64);
    assert_eq!(wide.len(), 8);
    for ((name, narrow), (_, wide)) in first_gradients(DType::F32).iter().zip(&wide) {
        let error = relative_difference(narrow, wide).unwrap();
        assert!(error < 1e-5, "{name}: {error:.1e}");
    }
}
// ANCHOR_END: first_step
