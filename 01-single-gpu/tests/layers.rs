//! The plain layers: a view, exact zeros, refusals, an empty batch; and LeNet with plain layers against LeNet with fast ones,
//! to 1e-12 of the largest entry. `tests/tests/pytorch` compares the outputs and gradients of each layer with PyTorch's.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use candle_core::{DType, Device, Tensor, Var};
use datasets::{Batch, Split, synthetic};
use ops::backward::{backward_from, is_recorded, no_grad};
use ops::difference::relative_difference;
use single_gpu::lenet::{Layers, Lenet};
use single_gpu::train::local_gradients;
use single_gpu::{init, layers};

const TOLERANCE: f64 = 1e-12;

fn noise(name: &str, shape: &[usize]) -> Var {
    init::normal(name, shape, 1.0, 7, DType::F64, &Device::Cpu).unwrap().value
}

#[test]
fn conv2d_of_a_view_agrees() {
    let (x, weight, bias) =
        (noise("x", &[2, 5, 6, 3]), noise("weight", &[2, 3, 3, 3]), noise("bias", &[2]));
    let view = x.permute((0, 3, 1, 2)).unwrap().narrow(2, 1, 4).unwrap();
    let (plain, fast) = (
        layers::conv2d(&view, &weight, &bias).unwrap(),
        ops::conv2d(&view, &weight, Some(&bias), 1, 0).unwrap(),
    );
    assert!(relative_difference(&plain, &fast).unwrap() <= TOLERANCE);
}

#[test]
fn pixels_in_no_window_get_exactly_no_gradient() {
    let x = noise("x", &[1, 1, 9, 9]);
    let y = layers::avg_pool2d(&x).unwrap();
    let gradients = backward_from(&y, &y.ones_like().unwrap()).unwrap();
    let dx = gradients.get(&x).unwrap().reshape((9, 9)).unwrap().to_vec2::<f64>().unwrap();
    for (row, values) in dx.iter().enumerate() {
        for (column, &value) in values.iter().enumerate() {
            let expected = if row == 8 || column == 8 { 0.0 } else { 0.25 };
            assert_eq!(value, expected, "row {row}, column {column}");
        }
    }
}

#[test]
fn relu_has_no_slope_at_zero_and_keeps_a_nan() {
    let x = Var::new(&[-1.0, 0.0, -0.0, 1e-300, f64::NAN], &Device::Cpu).unwrap();
    let y = layers::relu(&x).unwrap();
    let values = y.to_vec1::<f64>().unwrap();
    assert_eq!(values[..4], [0.0, 0.0, 0.0, 1e-300]);
    assert!(values[4].is_nan() && values[2].is_sign_positive(), "{values:?}");
    let gradients = backward_from(&y, &y.ones_like().unwrap()).unwrap();
    assert_eq!(gradients.get(&x).unwrap().to_vec1::<f64>().unwrap(), [0.0, 0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn f32_is_computed_in_f64_and_rounded_once() {
    let samples = 1 << 20;
    let logits = Tensor::zeros((samples, 10), DType::F32, &Device::Cpu).unwrap();
    let labels = Tensor::zeros(samples, DType::U32, &Device::Cpu).unwrap();
    let loss = layers::cross_entropy(&logits, &labels).unwrap().to_scalar::<f32>().unwrap();
    let expected = 10f64.ln() * samples as f64;
    assert!((f64::from(loss) - expected).abs() <= expected * f64::from(f32::EPSILON), "{loss}");
}

/// Refusals that name the layer, or say for which tensors there are plain layers.
#[test]
fn tensors_that_do_not_fit_are_refused_in_words() {
    let x = |shape: &[usize]| noise("x", shape);
    let labels = |labels: &[u32]| Tensor::new(labels, &Device::Cpu).unwrap();
    let halves = Tensor::zeros((2, 3), DType::BF16, &Device::Cpu).unwrap();
    let conv2d = |weight: &[usize], bias: &[usize]| {
        layers::conv2d(&x(&[1, 2, 5, 5]), &noise("w", weight), &noise("b", bias))
    };
    for (refused, complaint) in [
        (
            conv2d(&[4, 3, 3, 3], &[4]),
            "conv2d: a weight [4, 3, 3, 3] and a bias [4] do not fit an input [1, 2, 5, 5]",
        ),
        (conv2d(&[4, 2, 6, 3], &[4]), "do not fit"),
        (conv2d(&[4, 2, 3, 6], &[4]), "do not fit"),
        (conv2d(&[4, 2, 3, 3], &[3]), "do not fit"),
        (conv2d(&[4, 2, 3], &[4]), "a tensor with 4 axes was expected, got [4, 2, 3]"),
        (layers::avg_pool2d(&x(&[1, 1, 1, 5])), "a window of 2×2 pixels does not fit"),
        (
            layers::linear(&x(&[2, 3]), &noise("w", &[4, 5]), &noise("b", &[5])),
            "linear: a weight [4, 5] and a bias [5] do not fit an input [2, 3]",
        ),
        (
            layers::linear(&x(&[2, 3]), &noise("w", &[3, 5]), &noise("b", &[3])),
            "linear: a weight [3, 5]",
        ),
        (layers::cross_entropy(&x(&[2, 3]), &labels(&[0])), "1 labels do not fit logits [2, 3]"),
        (
            layers::cross_entropy(&x(&[2, 3]), &labels(&[0, 3])),
            "label 3 is not below 3, the number of classes",
        ),
        (layers::relu(&halves), "the plain layers work on f32 and f64, not on BF16"),
    ] {
        let refusal = refused.unwrap_err().to_string();
        assert!(refusal.contains(complaint), "{refusal}");
    }
}

/// Drawn garments, whose black pixels put many inputs of a relu at exactly 0.
fn garments(samples: usize, dtype: DType) -> Batch {
    let indices: Vec<u32> = (0..samples as u32).collect();
    synthetic::dataset(Split::Train, samples.max(1)).batch(&indices, dtype).unwrap()
}

fn lenet(layers: Layers, dtype: DType) -> Lenet {
    let lenet = Lenet::new(1, dtype, &Device::Cpu).unwrap().with_layers(layers);
    for parameter in lenet.parameters().iter() {
        // Ten times the usual weights, so that the logits depend on the images.
        let value = parameter.value.as_detached_tensor();
        parameter.value.set(&(value * 10.0).unwrap()).unwrap();
    }
    lenet
}

#[test]
fn lenet_has_the_same_loss_and_gradients_with_either_layers() {
    for (dtype, tolerance) in [(DType::F64, TOLERANCE), (DType::F32, 1e-5)] {
        for samples in [0, 1, 3, 17] {
            let batch = garments(samples, dtype);
            let step = |layers| local_gradients(&lenet(layers, dtype), &batch).unwrap();
            let (plain, fast) = (step(Layers::Plain), step(Layers::Fast));
            assert_eq!(
                (plain.sums.samples, plain.sums.correct),
                (samples as u64, fast.sums.correct)
            );
            approx::assert_relative_eq!(plain.sums.loss, fast.sums.loss, max_relative = tolerance);
            for (position, (plain, fast)) in plain.gradients.iter().zip(&fast.gradients).enumerate()
            {
                let error = relative_difference(plain, fast).unwrap();
                assert!(
                    error <= tolerance,
                    "{samples} samples, {position}, {dtype:?}: {error:.1e}"
                );
            }
        }
    }
}

#[test]
fn an_empty_batch_passes_through_the_plain_layers() {
    let (lenet, batch) = (lenet(Layers::Plain, DType::F64), garments(0, DType::F64));
    let logits = lenet.forward(&batch.images).unwrap();
    assert_eq!(logits.dims(), [0, 10]);
    let loss = lenet.loss(&logits, &batch.labels).unwrap();
    assert_eq!(loss.to_scalar::<f64>().unwrap(), 0.0);
    let gradients = backward_from(&loss, &loss.ones_like().unwrap()).unwrap();
    for gradient in lenet.parameters().gradients(&gradients).unwrap() {
        assert_eq!(gradient.abs().unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap(), 0.0);
    }
}

#[test]
fn a_forward_pass_under_no_grad_keeps_nothing() {
    let (lenet, batch) = (lenet(Layers::Plain, DType::F32), garments(2, DType::F32));
    let tracked = lenet.forward(&batch.images).unwrap();
    let untracked = no_grad(|| lenet.forward(&batch.images)).unwrap();
    assert!(tracked.track_op() && is_recorded(&tracked) && !untracked.track_op());
    assert_eq!(untracked.to_vec2::<f32>().unwrap(), tracked.to_vec2::<f32>().unwrap());
}
