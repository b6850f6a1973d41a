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
use cases::{BIAS, INPUT, WEIGHT, for_each_case, precisions};
use itertools::iproduct;
use ops::batch_norm::{Statistics, average_all};
use ops::{
    add, add_relu, avg_pool2d, batch_norm, batch_norm_with, causal_attention, conv2d,
    conv2d_relu_pool, cross_entropy, embedding, gelu, gelu_tanh, global_avg_pool, layer_norm,
    linear, relu, softmax,
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
    for_each_case("conv2d", 16, |case, [b, c, h, w, o, kernel_h, kernel_w, stride, padding]| {
        let x = case.variable(&[b, c, h, w], INPUT)?;
        let weight = case.variable(&[o, c, kernel_h, kernel_w], WEIGHT)?;
        let bias = case.variable(&[o], BIAS)?;
        let inputs = [("grad_input", &x), ("grad_weight", &weight), ("grad_bias", &bias)];
        case.check(&inputs, &conv2d(&x, &weight, Some(&bias), stride, padding)?)?;
        if has_plain_layers() && (stride, padding) == (1, 0) {
            case.check(&inputs, &layers::conv2d(&x, &weight, &bias)?)?;
        }
        Ok(())
    });
}

#[test]
fn what_sees_only_black_is_exactly_its_bias_to_a_relu() {
    for_each_case("black", 3, |case, [batch, inputs, height, width, outputs, kernel, pool]| {
        let mut values = noise((batch, inputs, height, width), INPUT)?.flatten_all()?.to_vec1()?;
        for (place, value) in values.iter_mut().enumerate() {
            let (column, row) = (place % width, place / width % height);
            let image = place / (inputs * height * width);
            if ![row, column].iter().all(|place| (image..image + 4).contains(place)) {
                *value = 0f64;
            }
        }
        let x = Tensor::from_vec(values, (batch, inputs, height, width), &device())?;
        let x = Var::from_tensor(&x.to_dtype(case.dtype)?)?;
        let w = case.variable(&[outputs, inputs, kernel, kernel], WEIGHT)?;
        let b = Var::zeros(outputs, case.dtype, &device())?;
        let inputs = [("grad_input", &x), ("grad_weight", &w), ("grad_bias", &b)];
        case.check(&inputs, &conv2d_relu_pool(&x, &w, &b, pool)?)?;
        if has_plain_layers() {
            assert_eq!(pool, 2);
            let y = layers::avg_pool2d(&layers::relu(&layers::conv2d(&x, &w, &b)?)?)?;
            case.check(&inputs, &y)?;
        }
        Ok(())
    });
}

#[test]
fn avg_pool2d_agrees() {
    for_each_case("avg_pool2d", 8, |case, [batch, channels, height, width, kernel, stride]| {
        let x = case.variable(&[batch, channels, height, width], INPUT)?;
        case.check(&[("grad_input", &x)], &avg_pool2d(&x, kernel, stride)?)?;
        if has_plain_layers() && (kernel, stride) == (2, 2) {
            case.check(&[("grad_input", &x)], &layers::avg_pool2d(&x)?)?;
        }
        Ok(())
    });
}

#[test]
fn global_avg_pool_agrees() {
    for_each_case::<4>("global_avg_pool", 3, |case, shape| {
        let x = case.variable(&shape, INPUT)?;
        case.check(&[("grad_input", &x)], &global_avg_pool(&x)?)
    });
}

#[test]
fn a_bias_for_each_channel_agrees() {
    for_each_case("add_bias", 4, |case, [batch, channels, height, width, relu]| {
        let x = case.variable(&[batch, channels, height, width], INPUT)?;
        let b = case.variable(&[channels], BIAS)?;
        let add = if relu == 1 { add_relu } else { add };
        let y = add(&x.permute((0, 2, 3, 1))?, &b)?.permute((0, 3, 1, 2))?;
        case.check(&[("grad_input", &x), ("grad_bias", &b)], &y)
    });
}

#[test]
fn batch_norm_agrees_in_training_and_in_evaluation() {
    const EPSILON: f64 = 1e-5;
    for_each_case("batch_norm", 5, |case, [batch, channels, height, width, relu]| {
        let x = ((noise((batch, channels, height, width), INPUT)? * 2.0)? + 3.0)?;
        let x = Var::from_tensor(&x.to_dtype(case.dtype)?)?;
        let w = case.variable(&[channels], WEIGHT)?;
        let b = case.variable(&[channels], BIAS)?;
        let inputs = [("grad_input", &x), ("grad_weight", &w), ("grad_bias", &b)];
        let relu = relu == 1;

        let (y, statistics) = batch_norm(&x, &w, &b, EPSILON, relu)?;
        case.check(&inputs, &y)?;

        let mean = Var::zeros(channels, case.dtype, &device())?;
        let variance = Var::ones(channels, case.dtype, &device())?;
        average_all(&statistics.averages(&mean, &variance), 0.1)?;
        case.compare("running_mean", &mean)?;
        case.compare("running_variance", &variance)?;

        let (mean, variance) = (mean.as_detached_tensor(), variance.as_detached_tensor());
        let running = Statistics { mean, variance, count: statistics.count };
        let y = batch_norm_with(&x, &w, &b, &running, EPSILON, relu)?;
        case.check_as("eval/", &inputs, &y)
    });
}

#[test]
fn relu_agrees_and_has_no_slope_at_zero() {
    for_each_case("relu", 1, |case, [count]| {
        let mut values = noise(count, INPUT)?.to_vec1::<f64>()?;
        values.iter_mut().step_by(5).for_each(|value| *value = 0.0);
        let x = Var::from_tensor(&Tensor::new(values, &device())?.to_dtype(case.dtype)?)?;
        let mut outputs = vec![relu(&x)?];
        if has_plain_layers() {
            outputs.push(layers::relu(&x)?);
        }
        for y in outputs {
            let slopes = y.sum_all()?.backward()?;
            let slopes = slopes.get(&x).expect("a gradient").to_dtype(DType::F64)?;
            let slopes = slopes.to_vec1::<f64>()?;
            assert!(slopes.iter().step_by(5).all(|&slope| slope == 0.0), "relu'(0) must be 0");
            case.check(&[("grad_input", &x)], &y)?;
        }
        Ok(())
    });
}

#[test]
fn add_relu_agrees() {
    for_each_case("add_relu", 1, |case, [count]| {
        let x = noise(count, INPUT)?.to_vec1::<f64>()?;
        let mut y = noise(count, WEIGHT)?.to_vec1::<f64>()?;
        for (x, y) in x.iter().zip(&mut y).step_by(5) {
            *y = -x;
        }
        let variable = |values| {
            Var::from_tensor(&Tensor::new::<Vec<f64>>(values, &device())?.to_dtype(case.dtype)?)
        };
        let (x, y) = (variable(x)?, variable(y)?);
        case.check(&[("grad_input", &x), ("grad_other", &y)], &add_relu(&x, &y)?)
    });
}

#[test]
fn linear_agrees() {
    for_each_case("linear", 4, |case, [batch, inputs, outputs]| {
        let x = case.variable(&[batch, inputs], INPUT)?;
        let w = case.variable(&[inputs, outputs], WEIGHT)?;
        let b = case.variable(&[outputs], BIAS)?;
        let inputs = [("grad_input", &x), ("grad_weight", &w), ("grad_bias", &b)];
        case.check(&inputs, &linear(&x, &w, &b)?)?;
        if has_plain_layers() {
            case.check(&inputs, &layers::linear(&x, &w, &b)?)?;
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
    for_each_case("cross_entropy", 4, |case, [batch, classes, scale]| {
        let logits = (noise((batch, classes), INPUT)? * scale as f64)?.to_dtype(case.dtype)?;
        let logits = Var::from_tensor(&logits)?;
        let labels = labels(batch, classes)?;
        let mut losses = vec![cross_entropy(&logits, &labels)?];
        if has_plain_layers() {
            losses.push(layers::cross_entropy(&logits, &labels)?);
        }
        for loss in losses {
            case.compare("loss", &loss.reshape(1)?)?;
            case.compare("grad_input", loss.backward()?.get(&logits).expect("a gradient"))?;
        }
        Ok(())
    });
}

#[test]
fn layer_norm_agrees() {
    for_each_case("layer_norm", 4, |case, [batch, tokens, features]| {
        let x = ((noise((batch, tokens, features), INPUT)? * 2.0)? + 3.0)?;
        let x = Var::from_tensor(&x.to_dtype(case.dtype)?)?;
        let (w, b) = (case.variable(&[features], WEIGHT)?, case.variable(&[features], BIAS)?);
        let inputs = [("grad_input", &x), ("grad_weight", &w), ("grad_bias", &b)];
        case.check(&inputs, &layer_norm(&x, &w, &b, 1e-5)?)
    });
}

#[test]
fn both_gelus_and_softmax_agree() {
    type OfOne = fn(&Tensor) -> Result<Tensor>;
    for (name, of) in [("gelu", gelu as OfOne), ("gelu_tanh", gelu_tanh)] {
        for_each_case(name, 2, |case, [length, scale]| {
            let x = (noise(length, INPUT)? * scale as f64)?.to_dtype(case.dtype)?;
            let x = Var::from_tensor(&x)?;
            case.check(&[("grad_input", &x)], &of(&x)?)
        });
    }
    for_each_case("softmax", 4, |case, [rows, features, scale]| {
        let x = (noise((rows, features), INPUT)? * scale as f64)?.to_dtype(case.dtype)?;
        let x = Var::from_tensor(&x)?;
        case.check(&[("grad_input", &x)], &softmax(&x)?)
    });
}

#[test]
fn causal_attention_agrees() {
    for_each_case("attention", 5, |case, [batch, tokens, heads, size]| {
        let shape = [batch, tokens, heads * size];
        let q = (noise(&shape, INPUT)? * 4.0)?.to_dtype(case.dtype)?;
        let q = Var::from_tensor(&q)?;
        let (k, v) = (case.variable(&shape, WEIGHT)?, case.variable(&shape, BIAS)?);
        let inputs = [("grad_query", &q), ("grad_key", &k), ("grad_value", &v)];
        case.check(&inputs, &causal_attention(&q, &k, &v, heads)?)
    });
}

#[test]
fn embedding_agrees() {
    for_each_case("embedding", 3, |case, [batch, tokens, vocabulary, features]| {
        let table = case.variable(&[vocabulary, features], WEIGHT)?;
        let tokens = labels(batch * tokens, vocabulary)?.reshape((batch, tokens))?;
        case.check(&[("grad_table", &table)], &embedding(&tokens, &table)?)
    });
}

fn lenet(fixture: &Fixture, dtype: DType) -> Result<Lenet> {
    let scales = fixture.get("lenet/scales")?.to_vec1::<f64>()?;
    let shapes = Lenet::new(1, dtype, &device())?;
    let parameters =
        (100..).zip(shapes.parameters().iter()).zip(scales).map(|((salt, shape), scale)| {
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
