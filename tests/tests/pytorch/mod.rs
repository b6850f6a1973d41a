//! Every operation and the whole of LeNet against PyTorch.
//!
//! The fixture holds what PyTorch computed in f64. An error is max|a − b| / max|b| of a tensor: at most
//! 1e-12 in f64, where only the order of additions differs, and at most 1e-5 in f32, whose own rounding
//! takes LeNet's gradients up to 2e-6 from the f64 ones (in PyTorch too).
//!
//! The plain layers of stage 1 are held to the same numbers, where they have the operation.
//!
//! With `TEST_DEVICE=cuda` all of it runs on a GPU, but for the plain layers.

mod cases;

use candle_core::Result;
use cases::{BIAS, INPUT, WEIGHT, check_case, for_each_case, precisions, variable};
use itertools::iproduct;
use ops::batch_norm::{Statistics, average_all};
use ops::{
    add_bias, add_bias_relu, add_relu, avg_pool2d, batch_norm, batch_norm_with, conv2d,
    conv2d_relu_pool, cross_entropy, global_avg_pool, linear, relu,
};
use single_gpu::layers;

use crate::prelude::*;

/// Whether the test's device runs the plain layers.
fn has_plain_layers() -> bool {
    device().is_cpu()
}

#[test]
fn the_noise_is_the_same_in_both_languages() {
    let fixture = Fixture::load().unwrap();
    let cases = fixture.cases("noise");
    assert!(cases.len() >= 3);
    for case in cases {
        let geometry = fixture.geometry(&format!("noise/{case}")).unwrap();
        let ours = noise(geometry[0], geometry[1] as u64).unwrap().to_vec1::<f64>().unwrap();
        let theirs = fixture.get(&format!("noise/{case}/values")).unwrap();
        assert_eq!(ours, theirs.to_vec1::<f64>().unwrap());
    }
}

#[test]
fn conv2d_agrees() {
    for_each_case("conv2d", 16, |fixture, case, geometry, precision| {
        let &[batch, inputs, height, width, outputs, kernel_h, kernel_w, stride, padding] =
            geometry
        else {
            panic!("{case}: geometry {geometry:?}")
        };
        let x = variable(&[batch, inputs, height, width], INPUT, precision.0)?;
        let w = variable(&[outputs, inputs, kernel_h, kernel_w], WEIGHT, precision.0)?;
        let b = variable(&[outputs], BIAS, precision.0)?;
        let y = conv2d(&x, &w, Some(&b), stride, padding)?;
        let inputs = [("grad_input", &x), ("grad_weight", &w), ("grad_bias", &b)];
        check_case(fixture, case, precision, &inputs, y)?;
        if has_plain_layers() && (stride, padding) == (1, 0) {
            check_case(fixture, case, precision, &inputs, layers::conv2d(&x, &w, &b)?)?;
        }
        Ok(())
    });
}

#[test]
fn what_sees_only_black_is_exactly_its_bias_to_a_relu() {
    for_each_case("black", 3, |fixture, case, geometry, precision| {
        let &[batch, inputs, height, width, outputs, kernel, pool] = geometry else {
            panic!("{case}: geometry {geometry:?}")
        };
        let mut values = noise((batch, inputs, height, width), INPUT)?.flatten_all()?.to_vec1()?;
        for (place, value) in values.iter_mut().enumerate() {
            let (column, row) = (place % width, place / width % height);
            let image = place / (inputs * height * width);
            if ![row, column].iter().all(|place| (image..image + 4).contains(place)) {
                *value = 0f64;
            }
        }
        let x = Tensor::from_vec(values, (batch, inputs, height, width), &device())?;
        let x = Var::from_tensor(&x.to_dtype(precision.0)?)?;
        let w = variable(&[outputs, inputs, kernel, kernel], WEIGHT, precision.0)?;
        let b = Var::zeros(outputs, precision.0, &device())?;
        let y = conv2d_relu_pool(&x, &w, &b, pool)?;
        let inputs = [("grad_input", &x), ("grad_weight", &w), ("grad_bias", &b)];
        check_case(fixture, case, precision, &inputs, y)?;
        if has_plain_layers() {
            assert_eq!(pool, 2);
            let y = layers::avg_pool2d(&layers::relu(&layers::conv2d(&x, &w, &b)?)?)?;
            check_case(fixture, case, precision, &inputs, y)?;
        }
        Ok(())
    });
}

#[test]
fn avg_pool2d_agrees() {
    for_each_case("avg_pool2d", 8, |fixture, case, geometry, precision| {
        let &[batch, channels, height, width, kernel, stride] = geometry else {
            panic!("{case}: geometry {geometry:?}")
        };
        let x = variable(&[batch, channels, height, width], INPUT, precision.0)?;
        let y = avg_pool2d(&x, kernel, stride)?;
        check_case(fixture, case, precision, &[("grad_input", &x)], y)?;
        if has_plain_layers() && (kernel, stride) == (2, 2) {
            check_case(fixture, case, precision, &[("grad_input", &x)], layers::avg_pool2d(&x)?)?;
        }
        Ok(())
    });
}

#[test]
fn global_avg_pool_agrees() {
    for_each_case("global_avg_pool", 3, |fixture, case, geometry, precision| {
        let x = variable(geometry, INPUT, precision.0)?;
        check_case(fixture, case, precision, &[("grad_input", &x)], global_avg_pool(&x)?)
    });
}

#[test]
fn add_bias_agrees() {
    for_each_case("add_bias", 4, |fixture, case, geometry, precision| {
        let &[batch, channels, height, width, relu] = geometry else {
            panic!("{case}: geometry {geometry:?}")
        };
        let x = variable(&[batch, channels, height, width], INPUT, precision.0)?;
        let b = variable(&[channels], BIAS, precision.0)?;
        let y = if relu == 1 { add_bias_relu(&x, &b)? } else { add_bias(&x, &b)? };
        check_case(fixture, case, precision, &[("grad_input", &x), ("grad_bias", &b)], y)
    });
}

#[test]
fn batch_norm_agrees_in_training_and_in_evaluation() {
    const EPSILON: f64 = 1e-5;
    for_each_case("batch_norm", 5, |fixture, case, geometry, precision| {
        let &[batch, channels, height, width, relu] = geometry else {
            panic!("{case}: geometry {geometry:?}")
        };
        let (dtype, tolerance) = precision;
        let x = ((noise((batch, channels, height, width), INPUT)? * 2.0)? + 3.0)?;
        let x = Var::from_tensor(&x.to_dtype(dtype)?)?;
        let w = variable(&[channels], WEIGHT, dtype)?;
        let b = variable(&[channels], BIAS, dtype)?;
        let relu = relu == 1;

        let (y, statistics) = batch_norm(&x, &w, &b, EPSILON, relu)?;
        let inputs = [("grad_input", &x), ("grad_weight", &w), ("grad_bias", &b)];
        check_case(fixture, case, precision, &inputs, y)?;

        let mean = Var::zeros(channels, dtype, &device())?;
        let variance = Var::ones(channels, dtype, &device())?;
        average_all(&statistics.averages(&mean, &variance), 0.1)?;
        for (name, value) in [("running_mean", &mean), ("running_variance", &variance)] {
            let error = relative_difference(value, fixture.get(&format!("{case}/{name}"))?)?;
            assert!(error <= tolerance, "{case}/{name} in {dtype:?}: {error:.1e}");
        }

        let running = Statistics {
            mean: mean.as_detached_tensor(),
            variance: variance.as_detached_tensor(),
            count: statistics.count,
        };
        let y = batch_norm_with(&x, &w, &b, &running, EPSILON, relu)?;
        let inputs = [("grad_input", &x), ("grad_weight", &w), ("grad_bias", &b)];
        check_case(fixture, &format!("{case}/eval"), precision, &inputs, y)
    });
}

#[test]
fn relu_agrees_and_has_no_slope_at_zero() {
    for_each_case("relu", 1, |fixture, case, geometry, precision| {
        let mut values = noise(geometry[0], INPUT)?.to_vec1::<f64>()?;
        values.iter_mut().step_by(5).for_each(|value| *value = 0.0);
        let x = Tensor::new(values, &device())?.to_dtype(precision.0)?;
        let x = Var::from_tensor(&x)?;
        let mut outputs = vec![relu(&x)?];
        if has_plain_layers() {
            outputs.push(layers::relu(&x)?);
        }
        for y in outputs {
            let slopes = y.sum_all()?.backward()?;
            let slopes = slopes.get(&x).expect("a gradient").to_dtype(DType::F64)?;
            let slopes = slopes.to_vec1::<f64>()?;
            assert!(slopes.iter().step_by(5).all(|&slope| slope == 0.0), "relu'(0) must be 0");
            check_case(fixture, case, precision, &[("grad_input", &x)], y)?;
        }
        Ok(())
    });
}

#[test]
fn add_relu_agrees() {
    for_each_case("add_relu", 1, |fixture, case, geometry, precision| {
        let x = noise(geometry[0], INPUT)?.to_vec1::<f64>()?;
        let mut y = noise(geometry[0], WEIGHT)?.to_vec1::<f64>()?;
        for (x, y) in x.iter().zip(&mut y).step_by(5) {
            *y = -x;
        }
        let [x, y] = [x, y].map(|values| {
            Var::from_tensor(&Tensor::new(values, &device())?.to_dtype(precision.0)?)
        });
        let (x, y) = (x?, y?);
        let sum = add_relu(&x, &y)?;
        check_case(fixture, case, precision, &[("grad_input", &x), ("grad_other", &y)], sum)
    });
}

#[test]
fn linear_agrees() {
    for_each_case("linear", 4, |fixture, case, geometry, precision| {
        let &[batch, inputs, outputs] = geometry else { panic!("{case}: geometry {geometry:?}") };
        let x = variable(&[batch, inputs], INPUT, precision.0)?;
        let w = variable(&[inputs, outputs], WEIGHT, precision.0)?;
        let b = variable(&[outputs], BIAS, precision.0)?;
        let y = linear(&x, &w, &b)?;
        let inputs = [("grad_input", &x), ("grad_weight", &w), ("grad_bias", &b)];
        check_case(fixture, case, precision, &inputs, y)?;
        if has_plain_layers() {
            check_case(fixture, case, precision, &inputs, layers::linear(&x, &w, &b)?)?;
        }
        Ok(())
    });
}

fn labels(batch: usize, classes: usize) -> Result<Tensor> {
    let labels: Vec<u32> = (0..batch).map(|i| ((i * 7 + 3) % classes) as u32).collect();
    Tensor::new(labels, &device())
}

#[test]
fn cross_entropy_agrees() {
    for_each_case("cross_entropy", 4, |fixture, case, geometry, (dtype, tolerance)| {
        let &[batch, classes, scale] = geometry else { panic!("{case}: geometry {geometry:?}") };
        let logits = (noise((batch, classes), INPUT)? * scale as f64)?.to_dtype(dtype)?;
        let logits = Var::from_tensor(&logits)?;
        let labels = labels(batch, classes)?;
        let mut losses = vec![cross_entropy(&logits, &labels)?];
        if has_plain_layers() {
            losses.push(layers::cross_entropy(&logits, &labels)?);
        }
        for loss in losses {
            let gradients = loss.backward()?;
            let gradient = gradients.get(&logits).expect("a gradient");
            for (name, value) in [("loss", &loss.reshape(1)?), ("grad_input", gradient)] {
                let expected = fixture.get(&format!("{case}/{name}"))?;
                let error = relative_difference(value, expected)?;
                assert!(error <= tolerance, "{case}/{name} in {dtype:?}: {error:.1e}");
            }
        }
        Ok(())
    });
}

fn lenet(fixture: &Fixture, dtype: DType) -> Result<Lenet> {
    let scales = fixture.get("lenet/scales")?.to_vec1::<f64>()?;
    let shapes = Lenet::new(1, dtype, &device())?;
    let parameters = (100..).zip(shapes.parameters()).zip(scales).map(|((salt, shape), scale)| {
        let value = (noise(shape.value.shape(), salt)? * scale)?.to_dtype(dtype)?;
        Ok(Parameter { name: shape.name.clone(), value: Var::from_tensor(&value)? })
    });
    Lenet::with_parameters(Parameters::new(parameters.collect::<Result<_>>()?)?)
}

/// What the fixture holds of a gradient: all of it, or for the largest one a part and its sums.
fn views(name: &str, gradient: &Tensor) -> Result<Vec<(String, Tensor)>> {
    if name != "W3" {
        return Ok(vec![(format!("grad_{name}"), gradient.clone())]);
    }
    let rows: Vec<u32> = (0..gradient.dim(0)? as u32).step_by(4).collect();
    let max_abs = gradient.abs()?.flatten_all()?.max(0)?.reshape(1)?;
    Ok(vec![
        ("grad_W3_rows".into(), gradient.index_select(&Tensor::new(rows, &device())?, 0)?),
        ("grad_W3_column_sums".into(), gradient.sum(0)?),
        ("grad_W3_row_sums".into(), gradient.sum(1)?),
        ("grad_W3_max_abs".into(), max_abs),
    ])
}

#[test]
fn lenet_agrees_in_logits_loss_and_all_eight_gradients() {
    let fixture = Fixture::load().unwrap();
    let geometry = fixture.get("lenet/geometry").unwrap().to_vec1::<i64>().unwrap();
    let images: Vec<usize> = geometry[..4].iter().map(|&size| size as usize).collect();
    let implementations =
        if has_plain_layers() { &[Layers::Fast, Layers::Plain][..] } else { &[Layers::Fast] };
    for ((dtype, tolerance), &layers) in iproduct!(precisions(), implementations) {
        let model = lenet(&fixture, dtype).unwrap().with_layers(layers);
        let images = noise(images.as_slice(), INPUT).unwrap().to_dtype(dtype).unwrap();
        let labels = labels(images.dim(0).unwrap(), 10).unwrap();
        let logits = model.forward(&images).unwrap();
        let loss = model.loss(&logits, &labels).unwrap().reshape(1).unwrap();
        let gradients = local_gradients(&model, &Batch { images, labels }).unwrap().gradients;

        let mut found = vec![("logits".to_owned(), logits), ("loss".to_owned(), loss)];
        for (parameter, gradient) in model.parameters().iter().zip(&gradients) {
            found.extend(views(&parameter.name, gradient).unwrap());
        }
        assert_eq!(found.len(), 2 + 7 + 4);
        for (name, value) in found {
            let expected = fixture.get(&format!("lenet/{name}")).unwrap();
            let error = relative_difference(&value, expected).unwrap();
            assert!(error <= tolerance, "lenet/{name}, {layers:?} in {dtype:?}: {error:.1e}");
        }
    }
}
