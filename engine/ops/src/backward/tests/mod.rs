use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Var};

use super::*;
use crate::kernels::element::cpu_memory;
use crate::tests::agreement::numbers;
use crate::{
    add_relu, cast, conv2d, conv2d_relu_pool, cross_entropy, flatten, global_avg_pool, linear,
    linear_relu, relu, sum, transpose,
};

fn noise(shape: &[usize]) -> Var {
    crate::tests::agreement::noise(&format!("{shape:?}"), shape)
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    // Adding 0 removes the sign of a zero, which may differ.
    numbers(tensor).into_iter().map(|number| (number + 0.0).to_bits()).collect()
}

/// Checks that both backward passes find the same gradients, to the last bit.
fn assert_as_candles(loss: &Tensor, variables: &[&Tensor]) {
    let (ours, candles) = (backward(loss).unwrap(), loss.backward().unwrap());
    for (number, variable) in variables.iter().enumerate() {
        let (ours, candles) = (ours.get(variable).unwrap(), candles.get(variable).unwrap());
        assert!(ours.is_contiguous());
        assert_eq!((ours.dims(), ours.dtype()), (variable.dims(), variable.dtype()), "{number}");
        assert_eq!(bits(ours), bits(candles), "{number}");
    }
}

#[test]
fn lenets_gradients_are_candles_to_the_last_bit() {
    for dtype in [DType::F32, DType::F64] {
        let parameter = |shape: &[usize]| {
            let small = (noise(shape).as_detached_tensor() * 0.05).unwrap();
            Var::from_tensor(&small.to_dtype(dtype).unwrap()).unwrap()
        };
        let [w1, w2] = [&[20, 1, 3, 3], &[50, 20, 5, 5]].map(|shape| parameter(shape));
        let [w3, w4] = [&[800, 128], &[128, 10]].map(|shape| parameter(shape));
        let [b1, b2, b3, b4] = [20, 50, 128, 10].map(|size| parameter(&[size]));
        let images = noise(&[3, 1, 28, 28]).as_detached_tensor().to_dtype(dtype).unwrap();
        let labels = Tensor::new(&[1u32, 7, 7], &Device::Cpu).unwrap();
        let x = conv2d_relu_pool(&images, &w1, &b1, 2).unwrap();
        let x = flatten(&conv2d_relu_pool(&x, &w2, &b2, 2).unwrap()).unwrap();
        let logits = linear(&linear_relu(&x, &w3, &b3).unwrap(), &w4, &b4).unwrap();
        let loss = cross_entropy(&logits, &labels).unwrap();
        assert!(is_recorded(&loss));
        assert_as_candles(&loss, &[&w1, &b1, &w2, &b2, &w3, &b3, &w4, &b4]);
    }
}

#[test]
fn what_is_used_more_than_once_gets_the_sum() {
    let (x, weight, bias) = (noise(&[4, 4]), noise(&[4, 4, 1]), noise(&[4]));
    let weight = Var::from_tensor(&weight.squeeze(2).unwrap()).unwrap();
    // The graph has the same layer twice, a shortcut, and a tensor that is both inputs of an operation.
    let y = linear(&linear(&x, &weight, &bias).unwrap(), &weight, &bias).unwrap();
    let y = add_relu(&y, &x).unwrap();
    // A sum from a relu gets two gradients, and then three.
    let twice = add_relu(&y, &relu(&y).unwrap()).unwrap();
    let thrice = add_relu(&twice, &y).unwrap();
    for loss in [add_relu(&y, &y).unwrap(), twice, thrice] {
        assert!(is_recorded(&loss));
        assert_as_candles(&loss, &[&x, &weight, &bias]);
    }
}

#[test]
fn two_gradients_are_taken_at_once_by_an_operation_that_can() {
    static OF_TWO: AtomicUsize = AtomicUsize::new(0);
    let (x, y) = (noise(&[3, 4]), noise(&[3, 4]));
    let sum = cpu_memory(numbers(&sum(&x, &y).unwrap()));
    let shape = x.shape();
    let sum =
        record_node("counting", (sum, shape), &[&x, &y], Kind::Operation, |_, gradient, _| {
            if let Accumulator::Two(_) = gradient {
                OF_TWO.fetch_add(1, Ordering::SeqCst);
            }
            let gradient = gradient.sum()?;
            Ok([Some(gradient.clone()), Some(gradient)])
        });
    let sum = sum.unwrap();
    let once = relu(&sum).unwrap();
    let twice = add_relu(&sum, &once).unwrap();
    let thrice = add_relu(&twice, &sum).unwrap();
    for (loss, taken) in [(once, 0), (twice, 1), (thrice, 1)] {
        OF_TWO.store(0, Ordering::SeqCst);
        let found = backward(&loss).unwrap();
        assert_eq!(OF_TWO.load(Ordering::SeqCst), taken);
        assert_eq!(bits(found.get(&x).unwrap()), bits(loss.backward().unwrap().get(&x).unwrap()));
    }
}

#[test]
fn copies_and_means_have_candles_values_and_gradients() {
    let x = noise(&[3, 4, 2, 5]);
    let of_view = x.transpose(1, 2).unwrap();
    let agree = |ours: Tensor, candles: Tensor| {
        assert_eq!((bits(&ours), ours.dims()), (bits(&candles), candles.dims()));
        let square = |y: &Tensor| y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let (ours, candles) = (square(&ours), square(&candles));
        assert_eq!(bits(ours.get(&x).unwrap()), bits(candles.get(&x).unwrap()));
    };
    for x in [x.as_tensor(), &of_view] {
        agree(flatten(x).unwrap(), x.flatten_from(1).unwrap());
        let mean = x.flatten_from(2).unwrap().mean(2).unwrap();
        agree(global_avg_pool(x).unwrap(), mean);
        agree(cast(x, DType::F32).unwrap(), x.to_dtype(DType::F32).unwrap());
        let matrix = x.flatten_from(1).unwrap().narrow(0, 1, 2).unwrap();
        agree(transpose(&matrix).unwrap(), matrix.t().unwrap());
    }
}

/// Gradients are contiguous: a bucket or a kernel that takes gradients relies on their layout.
#[test]
fn gradients_lie_in_memory_as_variables_do() {
    let (x, gradient) = (noise(&[3, 4]), noise(&[4, 3]).as_detached_tensor());
    assert_as_candles(&transpose(&x).unwrap(), &[&x]);
    let found = backward_from(&transpose(&x).unwrap(), &gradient).unwrap();
    assert!(found.get(&x).unwrap().is_contiguous());
}

#[test]
fn nothing_is_copied_that_is_flat_or_constant() {
    let (flat, images) = (noise(&[3, 4]), noise(&[3, 2, 2]));
    assert_eq!(flatten(&flat).unwrap().id(), flat.id());
    assert!(is_recorded(&relu(&flatten(&images).unwrap()).unwrap()));
    let constant = flatten(&images.as_detached_tensor()).unwrap();
    assert_eq!((constant.dims(), constant.track_op()), ([3, 4].as_slice(), false));
    let nothing = Tensor::zeros((0, 2, 2), DType::F64, &Device::Cpu).unwrap();
    let nothing = Var::from_tensor(&nothing).unwrap();
    assert_eq!(flatten(&nothing).unwrap().dims(), [0, 4]);
    let error = flatten(&Tensor::new(1.0, &Device::Cpu).unwrap()).unwrap_err().to_string();
    assert!(error.contains("at least one axis"), "{error}");
}

#[test]
fn where_candle_has_a_part_it_makes_the_whole_pass() {
    let x = noise(&[3, 4]);
    let squares = relu(&x).unwrap().sqr().unwrap();
    let loss = relu(&squares).unwrap().sum_all().unwrap();
    assert!(!is_recorded(&loss));
    assert_as_candles(&loss, &[&x]);
}

#[test]
fn a_pass_may_begin_anywhere() {
    let (x, gradient) = (noise(&[3, 4]), noise(&[4, 3]).as_detached_tensor().t().unwrap());
    let remembered = relu(&x).unwrap();
    let other = x.sqr().unwrap();
    for (result, known) in [(remembered, true), (other, false)] {
        assert_eq!(is_recorded(&result), known);
        let found = backward_from(&result, &gradient).unwrap();
        let loss = (&result * &gradient).unwrap().sum_all().unwrap();
        let expected = loss.backward().unwrap();
        assert_eq!(bits(found.get(&x).unwrap()), bits(expected.get(&x).unwrap()));
    }
    let error = backward_from(&relu(&x).unwrap(), &x.t().unwrap()).unwrap_err().to_string();
    assert!(error.contains("backward: a tensor F64 [3, 4] got a gradient F64 [4, 3]"), "{error}");
}

#[test]
fn variables_that_a_result_does_not_depend_on_have_no_gradient() {
    let (x, other) = (noise(&[3, 4]), noise(&[2]));
    let gradients = backward(&relu(&x).unwrap()).unwrap();
    assert!(gradients.get(&other).is_none());
    // Constants and intermediate results have no gradient either.
    let (weight, bias) = (noise(&[4, 2]).as_detached_tensor(), noise(&[2]));
    let y = relu(&x).unwrap();
    let gradients = backward(&linear(&y, &weight, &bias).unwrap()).unwrap();
    assert!(gradients.get(&weight).is_none() && gradients.get(&y).is_none());
    assert_eq!(numbers(gradients.get(&bias).unwrap()), [3.0, 3.0]);
}

#[test]
fn a_graph_may_be_walked_in_another_thread() {
    let x = noise(&[3, 4]);
    let y = relu(&x).unwrap();
    let (known, found) =
        std::thread::spawn(move || (is_recorded(&y), backward(&y).unwrap())).join().unwrap();
    assert!(known && found.get(&x).is_some());
}

#[test]
fn what_is_computed_under_no_grad_keeps_nothing_and_has_the_same_bits() {
    let (x, weight, bias) = (noise(&[3, 4]), noise(&[4, 2]), noise(&[2]));
    let layers = || linear(&relu(&add_relu(&x, &x).unwrap()).unwrap(), &weight, &bias).unwrap();
    let (tracked, result) = (layers(), no_grad(layers));
    assert!(is_recorded(&tracked) && tracked.track_op());
    assert!(!result.track_op() && tape::node_of(&result).is_none());
    assert_eq!(bits(&result), bits(&tracked));
    // Only the graph needs the copy that flattens.
    let images = noise(&[3, 2, 2]);
    assert!(!no_grad(|| flatten(&relu(&images)?)).unwrap().track_op());
    // A result that was tracked before still has its backward.
    assert_as_candles(&tracked, &[&x, &weight, &bias]);
}

#[test]
fn no_grad_ends_where_it_ends() {
    let x = noise(&[3, 4]);
    let is_tracked = || relu(&x).unwrap().track_op();
    no_grad(|| {
        no_grad(|| assert!(!is_tracked()));
        assert!(!is_tracked(), "the outer one goes on");
        let panicked =
            std::panic::catch_unwind(|| no_grad(|| std::panic::resume_unwind(Box::new(()))));
        assert!(panicked.is_err());
        assert!(!is_tracked(), "and behind a panic");
        std::thread::scope(|scope| {
            assert!(scope.spawn(is_tracked).join().unwrap(), "another thread is not concerned");
        });
    });
    assert!(is_tracked());
    let panicked = std::panic::catch_unwind(|| no_grad(|| std::panic::resume_unwind(Box::new(()))));
    assert!(panicked.is_err());
    assert!(is_tracked(), "a panic ends it as well");
}

/// Computes both halves, and returns them as one set of gradients. Fails if a gradient came twice.
fn in_halves(loss: &Tensor, gradient: &Tensor) -> Gradients {
    let (first, second) = backward_in_halves(loss, gradient).unwrap();
    let (mut all, second) = (first.0, second.run().unwrap().0);
    for (id, gradient) in second {
        assert!(all.insert(id, gradient).is_none(), "a gradient in both halves");
    }
    Gradients(all)
}

#[test]
fn both_halves_together_have_the_bits_of_the_whole() {
    // Every algorithm of a convolution: Winograd's of three sizes, strided 1×1, im2col, direct.
    let convolutions = [
        ([5, 16, 17, 17], [16, 16, 3, 3], 1, 1),
        ([20, 16, 4, 4], [16, 16, 3, 3], 1, 1),
        ([3, 16, 13, 13], [16, 16, 5, 5], 1, 0),
        ([3, 16, 9, 8], [16, 16, 1, 1], 2, 0),
        ([3, 5, 9, 8], [4, 5, 3, 3], 2, 1),
        ([3, 1, 9, 8], [16, 1, 3, 3], 1, 1),
    ];
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let variable = |shape: &[usize]| {
            Var::from_tensor(&noise(shape).as_detached_tensor().to_dtype(dtype).unwrap()).unwrap()
        };
        for (x, weight, stride, padding) in convolutions {
            let (x, weight, bias) = (variable(&x), variable(&weight), variable(&weight[..1]));
            let plain = conv2d(&x, &weight, None, stride, padding).unwrap();
            let with_bias = conv2d(&x, &weight, Some(&bias), stride, padding).unwrap();
            let data = conv2d(&x.as_detached_tensor(), &weight, Some(&bias), stride, padding);
            let mut results = vec![plain, with_bias, data.unwrap()];
            if (stride, padding) == (1, 0) {
                results.push(conv2d_relu_pool(&x, &weight, &bias, 3).unwrap());
            }
            for y in results {
                assert_halves_are_the_whole(&y, &[&x, &weight, &bias]);
            }
        }
        let (x, weight, bias) = (variable(&[70, 40]), variable(&[40, 40]), variable(&[40]));
        // One weight in two layers, and an input that is also added to their output.
        let y = linear_relu(&linear(&x, &weight, &bias).unwrap(), &weight, &bias).unwrap();
        let y = add_relu(&y, &x).unwrap();
        assert_halves_are_the_whole(&y, &[&x, &weight, &bias]);
        // A weight that is computed from another, which is also added to the activations.
        let y = linear(&relu(&x).unwrap(), &relu(&weight).unwrap(), &bias).unwrap();
        let wide = Var::from_tensor(&x.narrow(0, 0, 40).unwrap().contiguous().unwrap()).unwrap();
        let z = linear(&add_relu(&wide, &weight).unwrap(), &relu(&weight).unwrap(), &bias).unwrap();
        let z = add_relu(&z, &weight).unwrap();
        assert_halves_are_the_whole(&y, &[&x, &weight, &bias]);
        assert_halves_are_the_whole(&z, &[&wide, &weight, &bias]);
    }
}

fn assert_halves_are_the_whole(y: &Tensor, variables: &[&Var]) {
    let gradient = noise(y.dims()).as_detached_tensor().to_dtype(y.dtype()).unwrap();
    let (whole, halves) = (backward_from(y, &gradient).unwrap(), in_halves(y, &gradient));
    assert_eq!(whole.0.len(), halves.0.len());
    for variable in variables {
        let [whole, halves] = [&whole, &halves].map(|all| all.get(variable).map(bits));
        assert_eq!(whole, halves, "{:?}", variable.dims());
    }
}

/// An infinity makes Winograd's convolution compute planes and kernels again.
#[test]
fn both_halves_agree_on_results_that_are_not_finite() {
    let (weight, bias) = (noise(&[16, 16, 3, 3]), noise(&[16]));
    let x = noise(&[5, 16, 9, 9]).as_detached_tensor();
    let at = Tensor::zeros((1, 1, 1, 1), DType::F64, &Device::Cpu).unwrap();
    let x = x.slice_assign(&[0..1, 3..4, 4..5, 4..5], &(at + f64::INFINITY).unwrap()).unwrap();
    let x = Var::from_tensor(&x).unwrap();
    let y = conv2d(&x, &weight, Some(&bias), 1, 1).unwrap();
    assert_halves_are_the_whole(&y, &[&x, &weight, &bias]);
}

#[test]
fn the_first_half_computes_no_gradient_of_a_weight() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let (x, weight, bias) = (noise(&[3, 4]), noise(&[4, 4]), noise(&[4]));
    let copy = cpu_memory(numbers(&x));
    let backward = |_: &Tensor, dy: &Tensor, wanted: Wanted| {
        ASKED.fetch_add(1 + 100 * usize::from(wanted.weights), Ordering::SeqCst);
        let of = |wanted: bool| wanted.then(|| dy.clone());
        Ok([of(wanted.input), of(wanted.weights).map(|_| weight_like())])
    };
    fn weight_like() -> Tensor {
        noise(&[4, 4]).as_detached_tensor()
    }
    let y = record_in_halves("counting", copy, x.shape(), [&x, &weight], backward).unwrap();
    let y = linear_relu(&relu(&y).unwrap(), &weight, &bias).unwrap();
    let (first, second) = backward_in_halves(&y, &y.ones_like().unwrap()).unwrap();
    assert_eq!(ASKED.swap(0, Ordering::SeqCst), 1);
    assert!(first.get(&x).is_some() && first.get(&weight).is_none() && first.get(&bias).is_none());
    assert_eq!(second.bytes(), 2 * 3 * 4 * 8);
    let second = second.run().unwrap();
    assert_eq!(ASKED.swap(0, Ordering::SeqCst), 101);
    assert!(
        second.get(&x).is_none() && second.get(&weight).is_some() && second.get(&bias).is_some()
    );
    // Where candle's operations take part, the first half computes everything.
    let (first, second) = backward_in_halves(&y.sqr().unwrap(), &y.ones_like().unwrap()).unwrap();
    assert!([&x, &weight, &bias].iter().all(|variable| first.get(variable).is_some()));
    assert_eq!((second.bytes(), second.run().unwrap().0.len()), (0, 0));
}

/// The layers themselves, asked directly: what is not wanted is not returned.
#[test]
fn layers_compute_what_is_wanted_and_nothing_else() {
    let (x, weight, bias) = (noise(&[3, 16, 9, 9]), noise(&[16, 16, 3, 3]), noise(&[16]));
    let (rows, matrix) = (noise(&[3, 16]), noise(&[16, 16]));
    for y in [
        conv2d(&x, &weight, Some(&bias), 1, 1).unwrap(),
        conv2d(&x, &weight, Some(&bias), 2, 1).unwrap(),
        conv2d_relu_pool(&x, &weight, &bias, 2).unwrap(),
        linear(&rows, &matrix, &bias).unwrap(),
        linear_relu(&rows, &matrix, &bias).unwrap(),
    ] {
        let (node, gradient) = (tape::node_of(&y).unwrap(), y.ones_like().unwrap());
        for (input, weights) in [(true, false), (false, true), (true, true)] {
            let gradient = Accumulator::One(gradient.clone());
            let found = node.backward(&y, gradient, Wanted { input, weights }).unwrap();
            let found: Vec<bool> = found.iter().map(Option::is_some).collect();
            assert_eq!(found, [input, weights, weights]);
        }
    }
}
