//! Every gradient against central differences, in f64.
//!
//! For a function f and a step h, (f(x + h) − f(x − h)) / 2h differs from f′(x) by about h² from the
//! curvature and ε·|f| / h from rounding; with h = 1e-5 both are near 1e-10 here, so 1e-7 of the largest
//! entry is a bound with room. It holds only where f is smooth: the inputs are dense noise, biases are
//! not zero, and no value that a relu sees lies within 100 steps of its kink.
//!
//! With `TEST_DEVICE=cuda` all of it runs on a GPU, but for the plain layers of stage 1.

use candle_core::Result;
use ops::backward::backward_from;
use ops::batch_norm::Statistics;
use ops::{
    add, add_relu, avg_pool2d, batch_norm, batch_norm_with, causal_attention, conv2d,
    cross_entropy, cross_entropy_of_part, embedding, flatten, gelu, gelu_tanh, global_avg_pool,
    layer_norm, linear, relu, row_statistics, softmax, transpose,
};
use single_gpu::gradient_check::{STEP, finite_differences, gradient_errors};
use single_gpu::layers;

use crate::prelude::*;

const TOLERANCE: f64 = 1e-7;

fn variable(shape: &[usize], salt: u64) -> Var {
    Var::from_tensor(&noise(shape, salt).unwrap()).unwrap()
}

/// Whether no number that a relu is given lies near its kink.
fn is_away_from_zero(x: &Tensor) -> bool {
    let nearest = x.abs().unwrap().flatten_all().unwrap().min(0).unwrap();
    nearest.to_scalar::<f64>().unwrap() > 100.0 * STEP
}

/// Compares an operation's backward with differences of Σ output · noise, for every input element.
fn check(name: &str, inputs: &[&Var], op: &dyn Fn() -> Result<Tensor>) {
    let scalar = || {
        let output = op()?;
        let weights = noise(output.shape(), 9)?;
        (output * weights)?.flatten_all()?.sum_all()
    };
    let output = op().unwrap();
    let gradients = backward_from(&output, &noise(output.shape(), 9).unwrap()).unwrap();
    for (position, input) in inputs.iter().enumerate() {
        let elements: Vec<usize> = (0..input.elem_count()).collect();
        let slopes = finite_differences(input, &elements, scalar).unwrap();
        let slopes = Tensor::from_vec(slopes, input.shape(), &device()).unwrap();
        let gradient = gradients.get(input).expect("a gradient");
        let error = relative_difference(gradient, &slopes).unwrap();
        assert!(error <= TOLERANCE, "{name}, input {position}: {error:.1e}");
    }
}

/// Does the same for a plain layer, on a device that runs it.
fn check_plain(name: &str, inputs: &[&Var], op: &dyn Fn() -> Result<Tensor>) {
    if device().is_cpu() {
        check(&format!("plain {name}"), inputs, op);
    }
}

#[test]
fn conv2d_at_sizes_that_do_not_divide() {
    // batch, in, height, width, out, kernel height, kernel width, stride, padding
    for [b, c, h, w, o, kh, kw, stride, padding] in [
        [1, 1, 5, 5, 2, 3, 3, 1, 0],
        [3, 2, 6, 5, 3, 3, 3, 1, 1],
        [2, 3, 7, 6, 2, 2, 3, 2, 1],
        [1, 2, 8, 5, 2, 5, 5, 3, 2],
        [9, 1, 4, 4, 1, 1, 1, 1, 0],
        [3, 2, 6, 5, 3, 2, 3, 1, 0],
        [2, 3, 4, 4, 2, 4, 1, 1, 0],
        // More images than a block has, so that what one block leaves in scratch memory meets the next.
        [17, 2, 4, 3, 2, 3, 3, 1, 1],
        // Channels enough for the transformed ways: tiles of 4×4 and 2×2 outputs at 3×3, of 3×3 at 5×5.
        [1, 8, 12, 10, 8, 3, 3, 1, 0],
        [2, 9, 7, 6, 10, 3, 3, 1, 1],
        [2, 8, 10, 8, 9, 5, 5, 1, 0],
    ] {
        let x = variable(&[b, c, h, w], 1);
        let weight = variable(&[o, c, kh, kw], 2);
        let bias = variable(&[o], 3);
        let name = format!("conv2d {:?} ∗ {:?}, {stride}, {padding}", x.dims(), weight.dims());
        check(&name, &[&x, &weight, &bias], &|| conv2d(&x, &weight, Some(&bias), stride, padding));
        if (stride, padding) == (1, 0) {
            check_plain(&name, &[&x, &weight, &bias], &|| layers::conv2d(&x, &weight, &bias));
        }
    }
}

#[test]
fn avg_pool2d_at_sizes_that_do_not_divide() {
    let pairs = [[9, 9], [7, 5], [6, 8], [2, 3]].map(|[h, w]| [h, w, 2, 2]);
    let others = [[7, 8, 3, 2], [8, 7, 3, 3], [5, 6, 2, 1], [8, 9, 2, 3]];
    for [h, w, kernel, stride] in pairs.into_iter().chain(others) {
        let (x, name) =
            (variable(&[2, 3, h, w], 1), format!("avg_pool2d {h}×{w}, {kernel}, {stride}"));
        check(&name, &[&x], &|| avg_pool2d(&x, kernel, stride));
        if (kernel, stride) == (2, 2) {
            check_plain(&name, &[&x], &|| layers::avg_pool2d(&x));
        }
    }
}

/// Inputs of a batch normalisation whose outputs all lie away from relu's kink.
fn normalisable(shape: &[usize], statistics: Option<&Statistics>) -> [Var; 3] {
    for salt in 1.. {
        let x = variable(shape, salt);
        let (weight, bias) = (variable(&shape[1..2], 2), variable(&shape[1..2], 3));
        let y = match statistics {
            Some(given) => batch_norm_with(&x, &weight, &bias, given, EPSILON, false),
            None => batch_norm(&x, &weight, &bias, EPSILON, false).map(|(y, _)| y),
        };
        if is_away_from_zero(&y.unwrap()) {
            return [x, weight, bias];
        }
    }
    unreachable!()
}

const EPSILON: f64 = 1e-3;

#[test]
fn batch_norm_through_its_statistics() {
    for shape in [[3, 4, 5, 3], [2, 3, 7, 5], [5, 2, 1, 1], [1, 2, 3, 3]] {
        for relu in [false, true] {
            let [x, weight, bias] = normalisable(&shape, None);
            check(&format!("batch_norm {shape:?}, relu {relu}"), &[&x, &weight, &bias], &|| {
                Ok(batch_norm(&x, &weight, &bias, EPSILON, relu)?.0)
            });
        }
    }
}

#[test]
fn batch_norm_with_statistics_that_are_given() {
    let shape = [3, 4, 5, 3];
    let other = (noise((2, 4, 3, 3), 5).unwrap() * 2.0).unwrap();
    let given = Statistics::of(&(other + 0.5).unwrap()).unwrap();
    for relu in [false, true] {
        let [x, weight, bias] = normalisable(&shape, Some(&given));
        check(&format!("batch_norm_with, relu {relu}"), &[&x, &weight, &bias], &|| {
            batch_norm_with(&x, &weight, &bias, &given, EPSILON, relu)
        });
    }
}

#[test]
fn layer_norm_softmax_and_both_gelus() {
    for shape in [&[5, 7][..], &[2, 3, 19], &[67, 3]] {
        let x = variable(shape, 1);
        let features = &shape[shape.len() - 1..];
        let (weight, bias) = (variable(features, 2), variable(features, 3));
        check(&format!("layer_norm {shape:?}"), &[&x, &weight, &bias], &|| {
            layer_norm(&x, &weight, &bias, EPSILON)
        });
        check(&format!("softmax {shape:?}"), &[&x], &|| softmax(&(x.as_tensor() * 3.0)?));
        check(&format!("gelu {shape:?}"), &[&x], &|| gelu(&(x.as_tensor() * 3.0)?));
        check(&format!("gelu_tanh {shape:?}"), &[&x], &|| gelu_tanh(&(x.as_tensor() * 3.0)?));
    }
}

#[test]
fn views() {
    // A transposed input and an upstream gradient that is not contiguous either.
    let x = variable(&[2, 5, 6, 3], 1);
    let (kernel, bias) = (variable(&[2, 3, 3, 3], 2), variable(&[2], 3));
    check("conv2d of a view", &[&x, &kernel, &bias], &|| {
        conv2d(&x.permute((0, 3, 1, 2))?, &kernel, Some(&bias), 1, 0)?.permute((0, 2, 3, 1))
    });
    let (weight, bias) = (variable(&[3], 2), variable(&[3], 3));
    check("batch_norm of a view", &[&x, &weight, &bias], &|| {
        let (y, _) = batch_norm(&x.permute((0, 3, 1, 2))?, &weight, &bias, EPSILON, false)?;
        y.permute((0, 2, 3, 1))
    });
}

#[test]
fn operations_of_one_size() {
    let [q, k, v] = [1, 2, 3].map(|salt| variable(&[2, 7, 15], salt));
    check("causal_attention", &[&q, &k, &v], &|| causal_attention(&q, &k, &v, 3));
    let (x, matrix) = (variable(&[2, 3, 4, 5], 1), variable(&[3, 5], 2));
    check("global_avg_pool", &[&x], &|| global_avg_pool(&x));
    check("flatten", &[&x], &|| flatten(&x));
    check("transpose", &[&matrix], &|| transpose(&matrix));
    let (x, weight, bias) = (variable(&[3, 5], 1), variable(&[5, 4], 2), variable(&[4], 3));
    check("linear", &[&x, &weight, &bias], &|| linear(&x, &weight, &bias));
    check_plain("linear", &[&x, &weight, &bias], &|| layers::linear(&x, &weight, &bias));
    let tokens = Tensor::new(&[[2u32, 0, 3], [3, 3, 1]], &device()).unwrap();
    let table = variable(&[5, 4], 1);
    check("embedding", &[&table], &|| embedding(&tokens, &table));
}

#[test]
fn relus_away_from_their_kink() {
    let x = variable(&[5, 7], 1);
    assert!(is_away_from_zero(&x));
    check("relu", &[&x], &|| relu(&x));
    check_plain("relu", &[&x], &|| layers::relu(&x));
    let y = Var::from_tensor(&(x.as_detached_tensor() * -0.3).unwrap()).unwrap();
    check("add_relu", &[&x, &y], &|| add_relu(&x, &y));
    let bias = variable(&[3], 2);
    for shape in [&[4, 3][..], &[2, 3, 4, 3]] {
        let x = variable(shape, 4);
        check("add", &[&x, &bias], &|| add(&x, &bias));
        assert!(is_away_from_zero(&add(&x, &bias).unwrap()));
        check("add_relu", &[&x, &bias], &|| add_relu(&x, &bias));
    }
}

#[test]
fn cross_entropy_summed() {
    let labels = Tensor::new(&[2u32, 0, 3, 3, 1], &device()).unwrap();
    let logits = variable(&[5, 4], 1);
    check("cross_entropy", &[&logits], &|| cross_entropy(&logits, &labels));
    check_plain("cross_entropy", &[&logits], &|| layers::cross_entropy(&logits, &labels));
    let logits = variable(&[5, 70], 1);
    check("cross_entropy", &[&logits], &|| cross_entropy(&logits, &labels));
    let part = |of: &Tensor, rank: usize| of.narrow(1, rank * 35, 35)?.contiguous();
    let statistics = |rank: usize| row_statistics(&part(&logits, rank)?, &labels, rank * 35);
    let other = Var::from_tensor(&part(&logits, 0).unwrap()).unwrap();
    check("cross_entropy_of_part", &[&other], &|| {
        let all = [row_statistics(&other, &labels, 0)?, statistics(1)?];
        cross_entropy_of_part(&other, &labels, 0, &Tensor::stack(&all, 0)?)
    });
}

/// LeNet with dense noise for weights *and* biases, large enough for every layer to matter.
fn lively_lenet() -> Lenet {
    let shapes = Lenet::new(1, DType::F64, &device()).unwrap();
    let parameters = (20..).zip(shapes.parameters().iter()).map(|(salt, shape)| {
        let scale = match shape.value.rank() {
            1 => 0.1,
            2 => 1.5 / (shape.value.dims()[0] as f64).sqrt(),
            _ => 1.5 / (shape.value.dims()[1..].iter().product::<usize>() as f64).sqrt(),
        };
        let value = (noise(shape.value.shape(), salt).unwrap() * scale).unwrap();
        Parameter { name: shape.name.clone(), value: Var::from_tensor(&value).unwrap() }
    });
    Lenet::with_parameters(Parameters::new(parameters.collect()).unwrap()).unwrap()
}

#[test]
fn lenet_as_a_whole() {
    let images = noise((2, 1, 28, 28), 1).unwrap();
    let labels = Tensor::new(&[3u32, 7], &device()).unwrap();
    for layers in [Layers::Fast, Layers::Plain] {
        if layers == Layers::Plain && !device().is_cpu() {
            return eprintln!("SKIPPED: the plain layers run on the CPU only");
        }
        let model = lively_lenet().with_layers(layers);
        let loss = || model.loss(&model.forward(&images)?, &labels);
        // Sixteen elements of each tensor; the operations above are checked at every element.
        for error in gradient_errors(model.parameters(), 16, loss).unwrap() {
            assert!(error.largest_gradient > 1e-3, "the gradient should be lively: {error:?}");
            assert!(error.relative_error <= TOLERANCE, "{layers:?}: {error:?}");
        }
    }
}
