//! Compares every algorithm with the formula, and checks the guarantees of all algorithms.

pub(crate) mod formula;
mod not_finite;

use candle_core::{Device, Var};

use super::geometry::Geometry;
use super::*;
use crate::tests::agreement::{
    MANY, assert_agree, assert_empty_batch_is_nothing, bits, noise, noises, numbers, on, variable,
};
use formula::{Operands, Results, geometry};

fn assert_close(name: &str, ours: &[f64], truth: &[f64]) {
    assert_eq!(ours.len(), truth.len(), "{name}");
    let largest = truth.iter().fold(f64::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    for (place, (ours, truth)) in ours.iter().zip(truth).enumerate() {
        let error = (ours - truth).abs() / largest;
        assert!(error < 1e-12, "{name}, element {place}: {ours} for {truth}");
    }
}

/// Shapes of every kind: partial blocks, several runs, borders, odd sizes, strides, one pixel.
const SHAPES: [[usize; 9]; 14] = [
    [1, 1, 5, 5, 2, 3, 3, 1, 0],
    [35, 2, 6, 5, 3, 3, 3, 1, 1],
    [3, 3, 7, 6, 2, 2, 3, 2, 1],
    [16, 2, 8, 5, 2, 5, 5, 3, 2],
    [9, 1, 4, 4, 1, 1, 1, 1, 0],
    [2, 9, 9, 7, 17, 3, 3, 1, 1],
    [33, 8, 4, 4, 8, 3, 3, 1, 1],
    [18, 8, 13, 5, 9, 5, 5, 1, 0],
    [3, 8, 7, 7, 8, 5, 5, 1, 2],
    [17, 40, 3, 5, 20, 3, 3, 2, 1],
    [20, 18, 2, 3, 33, 1, 1, 2, 0],
    [17, 40, 8, 10, 20, 1, 1, 3, 0],
    [3, 33, 20, 19, 4, 1, 1, 2, 0],
    [1, 3, 3, 3, 2, 3, 3, 1, 0],
];

/// Returns the algorithms that can compute a convolution of this shape. `Direct` has no gradient of the input.
fn algorithms(g: &Geometry, want_dx: bool) -> Vec<Algorithm> {
    let mut algorithms = vec![Algorithm::Im2col];
    if g.patch() <= direct::LARGEST_PATCH && !want_dx {
        algorithms.push(Algorithm::Direct);
    }
    match (g.kernel_h, g.kernel_w, g.stride) {
        (3, 3, 1) => algorithms.extend([Algorithm::Winograd2, Algorithm::Winograd4]),
        (5, 5, 1) => algorithms.push(Algorithm::Winograd3),
        _ => {}
    }
    algorithms
}

#[test]
fn every_way_is_the_formula() {
    for sizes in SHAPES {
        let g = geometry(sizes);
        let operands = Operands::new(&g);
        let truth = operands.by_the_formula(&g);
        for want_dx in [false, true] {
            for algorithm in algorithms(&g, want_dx) {
                let results = operands.by::<f64>(algorithm, &g, (&Epilogue::Plain, None), want_dx);
                assert_eq!(results.dx.is_empty(), !want_dx);
                results.compare(&truth, |what, ours, truth| {
                    assert_close(&format!("{what} of {sizes:?} by {algorithm:?}"), ours, truth);
                });
            }
        }
    }
}

#[test]
fn a_shape_chooses_its_way() {
    let algorithm = |sizes| Algorithm::with_dx(&geometry(sizes));
    // LeNet's two shapes, and a few of ResNet-18's.
    assert_eq!(Algorithm::new(&geometry([256, 1, 28, 28, 20, 3, 3, 1, 0])), Algorithm::Direct);
    assert_eq!(algorithm([256, 20, 13, 13, 50, 5, 5, 1, 0]), Algorithm::Winograd3);
    assert_eq!(algorithm([16, 64, 28, 28, 64, 3, 3, 1, 1]), Algorithm::Winograd4);
    assert_eq!(algorithm([16, 512, 4, 4, 512, 3, 3, 1, 1]), Algorithm::Winograd2);
    assert_eq!(algorithm([64, 512, 4, 4, 512, 3, 3, 1, 1]), Algorithm::Winograd4);
    assert_eq!(algorithm([16, 64, 28, 28, 128, 3, 3, 2, 1]), Algorithm::Im2col);
    assert_eq!(algorithm([16, 64, 28, 28, 128, 1, 1, 2, 0]), Algorithm::Im2col);
    // A single pixel shares nothing with a neighbour, and a single channel has no sum to save on.
    assert_eq!(algorithm([16, 64, 1, 1, 64, 3, 3, 1, 1]), Algorithm::Im2col);
    assert_eq!(algorithm([16, 1, 28, 28, 64, 3, 3, 1, 1]), Algorithm::Im2col);
}

fn single(name: &str, shape: &[usize]) -> Var {
    variable(name, shape, DType::F32)
}

/// Returns the bits of a result and of the gradients of its squares.
fn bits_of_all<const N: usize>(y: Tensor, variables: [&Tensor; N]) -> (Vec<u64>, [Vec<u64>; N]) {
    let gradients = (&y * &y).unwrap().backward().unwrap();
    (bits(&y), variables.map(|variable| bits(gradients.get(variable).unwrap())))
}

#[test]
fn neither_threads_nor_a_bias_of_zero_change_the_bits() {
    for [b, c, h, w, o, kh, kw, stride, padding] in SHAPES {
        let (x, weight) = (single("x", &[b, c, h, w]), single("weight", &[o, c, kh, kw]));
        let results = |bias: Option<&Tensor>| {
            let y = conv2d(&x, &weight, bias, stride, padding).unwrap();
            bits_of_all(y, [&x, &weight])
        };
        let alone = on(1, || results(None));
        for threads in 2..=4 {
            let again = on(threads, || results(None));
            assert!(again == alone, "{:?}: other bits on {threads} threads", [b, c, h, w, o]);
        }
        // The input contains zeros. A bias of zero would change the sign of a negative zero.
        x.set(&relu(&x.as_detached_tensor()).unwrap()).unwrap();
        let zeros = Var::zeros(o, x.dtype(), x.device()).unwrap();
        assert!(results(None) == results(Some(&zeros)), "{:?}", [b, c, h, w, o]);
    }
}

#[test]
fn other_images_never_matter() {
    for [b, c, h, w, o, kh, kw, stride, padding] in SHAPES {
        let weight = single("weight", &[o, c, kh, kw]);
        // The last image comes after two different sets of images. One set holds numbers that could
        // spread.
        let last = single("last", &[1, c, h, w]).as_detached_tensor();
        let of_last = |others: Tensor| {
            let x = Var::from_tensor(&Tensor::cat(&[others, last.clone()], 0).unwrap()).unwrap();
            let y = conv2d(&x, &weight, None, stride, padding).unwrap();
            let dx = (&y * &y).unwrap().backward().unwrap().remove(&x).unwrap();
            [y.get(b).unwrap(), dx.get(b).unwrap()].map(|tensor| bits(&tensor))
        };
        let others = single("others", &[b, c, h, w]).as_detached_tensor();
        let not_numbers = (others.zeros_like().unwrap() / 0.0).unwrap();
        assert!(of_last(others) == of_last(not_numbers), "{:?}", [b, c, h, w, o]);
    }
}

#[test]
fn with_relu_and_pooling_it_is_the_three_after_one_another() {
    for ([b, c, h, w, o, kernel], pool) in [
        ([3, 1, 8, 7, 4, 3], 2),
        ([17, 8, 13, 13, 9, 5], 2),
        ([2, 8, 11, 9, 8, 3], 3),
        ([2, 3, 6, 5, 2, 2], 2),
    ] {
        let (x, weight) = (single("x", &[b, c, h, w]), single("weight", &[o, c, kernel, kernel]));
        let bias = single("bias", &[o]);
        let results = |y: Tensor| bits_of_all(y, [&x, &weight, &bias]);
        let at_once = results(conv2d_relu_pool(&x, &weight, &bias, pool).unwrap());
        let y = conv2d(&x, &weight, Some(&bias), 1, 0).unwrap();
        let one_by_one = results(avg_pool2d(&relu(&y).unwrap(), pool, pool).unwrap());
        assert!(at_once == one_by_one, "{:?}, pool {pool}", [b, c, h, w, o, kernel]);
    }
}

/// The bounds of convolutions. cuDNN may choose Winograd's or Fourier transforms, which cost f32 a digit more.
const BOUNDS: [(DType, f64); 3] = [MANY[0], (DType::F32, 1e-4), MANY[2]];

#[test]
fn composed_of_candles_operations_it_is_the_same_in_every_type() {
    for (x, weight, stride, padding) in [
        ([3, 2, 9, 9], [4, 2, 3, 3], 1, 0),
        ([3, 2, 9, 9], [4, 2, 3, 3], 1, 1),
        ([3, 2, 9, 9], [4, 2, 3, 3], 2, 1),
        ([3, 2, 9, 9], [4, 2, 3, 3], 3, 0),
        ([3, 1, 28, 28], [20, 1, 3, 3], 1, 0),
        ([5, 20, 13, 13], [50, 20, 5, 5], 1, 0),
        ([2, 16, 14, 14], [32, 16, 3, 3], 2, 1),
        ([2, 16, 14, 14], [32, 16, 1, 1], 2, 0),
        ([3, 7, 9, 8], [5, 7, 3, 2], 1, 1),
    ] {
        let inputs = noises([&x, &weight, &weight[..1]]);
        let formula = |t: &[&Tensor]| composed(t[0], t[1], t.get(2).copied(), stride, padding);
        let ours = |t: &[&Tensor]| conv2d(t[0], t[1], t.get(2).copied(), stride, padding);
        assert_agree(&BOUNDS, &inputs, &ours, &formula);
        assert_agree(&BOUNDS, &inputs[..2], &ours, &formula);
        if (stride, padding) == (1, 0) {
            // bf16 may round a sum to the other side of relu's kink, and this changes the gradient.
            assert_agree(&BOUNDS[..2], &inputs, &|t| conv2d_relu_pool(t[0], t[1], t[2], 2), &|t| {
                avg_pool2d(&relu(&formula(t)?)?, 2, 2)
            });
        }
    }
}

#[test]
fn a_gpu_is_not_asked_for_what_it_gets_wrong() {
    let (x, weight) = (noise("x", &[1, 1, 8, 9]), noise("weight", &[1, 1, 3, 3]));
    let bias = noise("bias", &[1]);
    let error = composed(&x, &weight, Some(&bias), 2, 1).unwrap_err().to_string();
    assert!(error.contains("stride 2") && error.contains("not 1 and 0"), "{error}");
    assert!(composed(&x, &weight, Some(&bias), 1, 1).is_ok());
}

#[test]
fn an_empty_batch_has_gradients_of_zero() {
    // No transform pays for an empty batch, so the list holds all algorithms that can be chosen.
    for ([c, h, w, o, kernel, stride, padding], algorithm) in [
        ([1, 5, 5, 2, 3, 1, 0], Algorithm::Direct),
        ([9, 5, 7, 3, 3, 2, 1], Algorithm::Im2col),
        ([40, 5, 7, 3, 1, 2, 0], Algorithm::Im2col),
    ] {
        let g = geometry([0, c, h, w, o, kernel, kernel, stride, padding]);
        assert_eq!(Algorithm::new(&g), algorithm);
        let (weight, bias) = (noise("weight", &[o, c, kernel, kernel]), noise("bias", &[o]));
        let convolve = |x: &Tensor| conv2d(x, &weight, Some(&bias), stride, padding);
        // A batch with images leaves numbers in scratch memory, which must not become gradients.
        let before = convolve(&noise("x", &[2, c, h, w])).unwrap();
        before.sqr().unwrap().sum_all().unwrap().backward().unwrap();

        let output = [o, g.out_h, g.out_w];
        assert_empty_batch_is_nothing(&[c, h, w], &output, &[&weight, &bias], convolve);
        // The images are data: only the parameters have gradients.
        let x = Tensor::zeros((0, c, h, w), DType::F64, weight.device()).unwrap();
        let gradients = convolve(&x).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(numbers(gradients.get(&weight).unwrap()), vec![0.0; weight.elem_count()]);
    }
}

fn zeros(shape: [usize; 4]) -> Tensor {
    Tensor::zeros(&shape, DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn sizes_of_zero_and_kernels_that_do_not_fit_are_refused() {
    for (x, weight, stride, padding) in [
        ([2, 0, 4, 4], [3, 0, 2, 2], 1, 0),
        ([2, 1, 0, 4], [3, 1, 2, 2], 1, 1),
        ([2, 1, 4, 0], [3, 1, 2, 2], 1, 1),
        ([2, 1, 4, 4], [0, 1, 2, 2], 1, 0),
        ([2, 1, 4, 4], [3, 1, 0, 2], 1, 0),
        ([2, 1, 4, 4], [3, 1, 2, 0], 1, 0),
        ([2, 1, 4, 4], [3, 1, 2, 2], 0, 0),
    ] {
        let error = conv2d(&zeros(x), &zeros(weight), None, stride, padding).unwrap_err();
        assert!(error.to_string().contains("must be at least 1"), "{error}");
    }
    let error = conv2d(&zeros([2, 1, 4, 4]), &zeros([3, 1, 5, 2]), None, 1, 0).unwrap_err();
    assert!(error.to_string().contains("a 5×2 kernel does not fit a 4×4 input"), "{error}");
}

#[test]
fn a_padding_that_nobody_can_count_is_refused() {
    let (x, weight) = (noise("x", &[1, 2, 4, 5]), noise("weight", &[3, 2, 3, 3]));
    // The first two overflow when they are doubled, the next when a plane is counted.
    for padding in [usize::MAX, usize::MAX / 2 + 1, usize::MAX / 4, 1 << 32] {
        let error = conv2d(&x, &weight, None, 1, padding).unwrap_err().to_string();
        let expected = format!("padding {padding} is too much for a 4×5 input");
        assert!(error.contains(&expected), "{error}");
    }
    assert!(conv2d(&x, &weight, None, 1, 40).is_ok());
}

#[test]
fn sizes_beyond_the_machines_memory_are_refused() {
    let (x, weight) = (zeros([1, 1, 4, 4]), zeros([1, 1, 3, 3]));
    let bias = zeros([1, 1, 1, 1]).flatten_all().unwrap();
    for padding in [1 << 20, 1_000_000] {
        let plain = conv2d(&x, &weight, None, 1, padding).unwrap_err().to_string();
        // The output of this stride is small, but the padded plane is not.
        let strided = conv2d(&x, &weight, Some(&bias), 1 << 20, padding).unwrap_err().to_string();
        for error in [plain, strided] {
            let expected =
                format!("conv2d: padding {padding} is too much for a 4×4 input and needs");
            assert!(error.starts_with(&expected), "{error}");
            assert!(error.contains("GiB of memory, and this machine has"), "{error}");
            assert!(error.contains("Beyond padding 2, a 3×3 kernel sees zeros alone"), "{error}");
        }
    }
    let padding = 1 << 20;
    // bf16 is computed in f32, and an empty batch needs no memory.
    let [x, weight] = [&x, &weight].map(|t| t.to_dtype(DType::BF16).unwrap());
    let error = conv2d(&x, &weight, None, 1, padding).unwrap_err().to_string();
    assert!(error.contains("padding 1048576 is too much for a 4×4 input"), "{error}");
    for channels in [1, 4] {
        let (none, weight) = (zeros([0, channels, 4, 4]), zeros([1, channels, 3, 3]));
        let none = conv2d(&none, &weight, None, 1, padding).unwrap();
        assert_eq!(none.dims(), [0, 1, 2_097_154, 2_097_154]);
    }

    // The im2col matrix has a row for each place of the kernel and a column for each output.
    let view = |size: usize| zeros([1, 1, 1, 1]).broadcast_as((1, 1, size, size)).unwrap();
    let error = conv2d(&view(40_000), &view(20_000), None, 1, 0).unwrap_err().to_string();
    assert!(
        error.contains("a 20000×20000 kernel on a 40000×40000 input with padding 0"),
        "{error}"
    );
    // In the backward pass the matrix holds all output rows at once.
    let g = geometry([1, 1, 1200, 1200, 1, 600, 600, 1, 0]);
    let im2col = Im2col(&g);
    assert_eq!(im2col.numbers_forward(), 360_000 * 601 * LANES);
    assert_eq!(im2col.numbers_backward(), 360_000 * 601 * 601 * LANES);
}

#[test]
fn a_stride_beyond_the_image_leaves_one_output() {
    for (kernel, padding) in [(1, 0), (3, 0), (3, 1)] {
        let (x, weight) = (single("x", &[2, 3, 4, 4]), single("weight", &[2, 3, kernel, kernel]));
        let results = |stride: usize| {
            let y = conv2d(&x, &weight, None, stride, padding).unwrap();
            assert_eq!(y.dims(), [2, 2, 1, 1]);
            bits_of_all(y, [&x, &weight])
        };
        for stride in [1 << 40, 1 << 62, usize::MAX] {
            assert_eq!(results(stride), results(6), "stride {stride}");
        }
    }
}
