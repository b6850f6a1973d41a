//! Tests of the rule that chooses algorithms.

use candle_core::DType;
use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnConvolutionBwdDataAlgo_t as BackwardData,
    cudnnConvolutionBwdFilterAlgo_t as BackwardFilter, cudnnConvolutionFwdAlgo_t as Forward,
    cudnnMathType_t as Math,
};

use super::super::Product;
use super::super::calls::Algorithm::{self, InputGradient, Output, WeightGradient};
use super::super::calls::Candidate;
use super::super::choice::{
    Choice, FFT, LARGEST_WORKSPACE, WINOGRAD, first_that_fits, ranked, worthwhile,
};
use super::{product_of, sized_product};
use crate::conv2d::geometry::Pass;

const FIRST: Algorithm = WeightGradient(BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0);
const SECOND: Algorithm = WeightGradient(BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);

const GOOD: Candidate =
    Candidate { algorithm: FIRST, works: true, deterministic: true, math: Math::CUDNN_FMA_MATH };

#[test]
fn the_first_that_works_and_is_deterministic_is_taken() {
    let product = product_of(Pass::WeightGradient, DType::F32, Math::CUDNN_FMA_MATH);
    let algorithms = |suggested: &[Candidate]| -> Vec<Algorithm> {
        ranked(&product, suggested).into_iter().map(|(algorithm, _)| algorithm).collect()
    };
    let second = Candidate { algorithm: SECOND, ..GOOD };
    assert_eq!(algorithms(&[GOOD, second]), [FIRST, SECOND]);
    assert_eq!(algorithms(&[second, GOOD]), [SECOND, FIRST]);
    assert_eq!(algorithms(&[Candidate { works: false, ..GOOD }, second]), [SECOND]);
    assert_eq!(algorithms(&[Candidate { deterministic: false, ..GOOD }, second]), [SECOND]);
    assert_eq!(algorithms(&[Candidate { works: false, ..GOOD }]), [SECOND]);
    assert_eq!(algorithms(&[]), [SECOND]);
}

#[test]
fn memory_has_a_limit_and_nobody_asks_for_more_than_one_needs() {
    let ranked = [FIRST, SECOND].map(|algorithm| (algorithm, Math::CUDNN_FMA_MATH));
    // The choice, and the number of queries for a workspace.
    let taken = |of_first: Option<usize>| {
        let mut asked = 0;
        let choice = first_that_fits(&ranked, |algorithm, _| {
            asked += 1;
            if algorithm == FIRST { of_first } else { Some(0) }
        });
        (choice, asked)
    };
    let choice =
        |algorithm, workspace| Some(Choice { algorithm, math: Math::CUDNN_FMA_MATH, workspace });
    assert_eq!(taken(Some(LARGEST_WORKSPACE)), (choice(FIRST, LARGEST_WORKSPACE), 1));
    assert_eq!(taken(Some(LARGEST_WORKSPACE + 1)), (choice(SECOND, 0), 2));
    assert_eq!(taken(None), (choice(SECOND, 0), 2));
    assert_eq!(first_that_fits(&ranked, |_, _| None), None);
}

#[test]
fn tensor_cores_multiply_f32_only_where_asked_to() {
    use Math::{
        CUDNN_DEFAULT_MATH as DEFAULT, CUDNN_FMA_MATH as FMA, CUDNN_TENSOR_OP_MATH as TENSOR,
        CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION as ANY,
    };
    let expected = [
        (FMA, [Some(FMA), Some(FMA), None, None]),
        (DEFAULT, [Some(FMA), Some(DEFAULT), Some(TENSOR), None]),
        (TENSOR, [Some(FMA), Some(DEFAULT), Some(TENSOR), None]),
    ];
    for (asked, expected) in expected {
        let product = product_of(Pass::WeightGradient, DType::F32, asked);
        let found = [FMA, DEFAULT, TENSOR, ANY].map(|math| {
            let ranked = ranked(&product, &[Candidate { math, ..GOOD }]);
            ranked.into_iter().find_map(|(algorithm, math)| (algorithm == FIRST).then_some(math))
        });
        assert_eq!(found, expected, "{asked:?}");
    }
}

#[test]
fn transforms_suit_neither_a_relu_nor_bf16() {
    let suits = |algorithm, product: &Product| {
        let candidate = Candidate { algorithm, math: product.math, ..GOOD };
        ranked(product, &[candidate]).iter().any(|&(ranked, _)| ranked == algorithm)
    };
    let bf16 = |pass| product_of(pass, DType::BF16, Math::CUDNN_TENSOR_OP_MATH);
    for (algorithm, transforms) in [
        (Forward::CUDNN_CONVOLUTION_FWD_ALGO_GEMM, false),
        (Forward::CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, false),
        (Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT, true),
        (Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, true),
        (Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, true),
        (Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, true),
    ] {
        let f32 = |pass| product_of(pass, DType::F32, Math::CUDNN_FMA_MATH);
        for (product, either) in [
            (f32(Pass::Output), true),
            (f32(Pass::OutputForRelu), false),
            (bf16(Pass::Output), false),
        ] {
            let expected = either || !transforms;
            assert_eq!(suits(Output(algorithm), &product), expected, "{algorithm:?}, {product}");
        }
    }
    let winograd = BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED;
    assert!(!suits(WeightGradient(winograd), &bf16(Pass::WeightGradient)));
    assert!(suits(FIRST, &bf16(Pass::WeightGradient)));
}

/// Each usual algorithm appears once, and none rounds more than the product allows.
#[test]
fn where_nothing_is_suggested_the_usual_is_left() {
    use Math::{
        CUDNN_DEFAULT_MATH as DEFAULT, CUDNN_FMA_MATH as FMA, CUDNN_TENSOR_OP_MATH as TENSOR,
    };
    for (dtype, math, expected) in [
        (DType::F32, FMA, &[FMA][..]),
        (DType::F32, DEFAULT, &[DEFAULT, FMA]),
        (DType::F64, DEFAULT, &[DEFAULT, FMA]),
        (DType::BF16, TENSOR, &[TENSOR, DEFAULT, FMA]),
    ] {
        let product = product_of(Pass::WeightGradient, dtype, math);
        let expected: Vec<_> = expected.iter().map(|&math| (SECOND, math)).collect();
        assert_eq!(ranked(&product, &[]), expected, "{product}");
    }
}

/// A shape of ResNet-18 with a padded plane of 32×32.
const LARGE: [usize; 9] = [256, 64, 28, 28, 64, 3, 3, 1, 1];
/// A shape of ResNet-18 with a padded plane of 8×8.
const SMALL: [usize; 9] = [256, 512, 4, 4, 512, 3, 3, 1, 1];

#[test]
fn it_pays_for_small_kernels_of_many_channels_in_f32() {
    for (sizes, expected) in [
        // Measured shapes, and the same shapes with other numbers of images.
        (LARGE, &[FFT, WINOGRAD][..]),
        ([32, 128, 14, 14, 128, 3, 3, 1, 1], &[FFT, WINOGRAD]),
        ([32, 256, 7, 7, 256, 3, 3, 1, 1], &[WINOGRAD]),
        (SMALL, &[WINOGRAD]),
        // Planes that are larger, smaller, long and narrow, or that fill half of a padded plane.
        ([8, 64, 56, 56, 64, 3, 3, 1, 1], &[WINOGRAD]),
        ([8, 64, 6, 6, 64, 3, 3, 1, 1], &[WINOGRAD]),
        ([8, 64, 30, 3, 64, 3, 3, 1, 1], &[WINOGRAD]),
        ([8, 64, 23, 23, 64, 3, 3, 1, 1], &[WINOGRAD]),
        // Few channels on one side.
        ([256, 1, 28, 28, 64, 3, 3, 1, 1], &[]),
        ([256, 64, 28, 28, 32, 3, 3, 1, 1], &[]),
        // Stride 2, no padding, other kernels.
        ([256, 64, 28, 28, 128, 3, 3, 2, 1], &[]),
        ([256, 64, 28, 28, 64, 3, 3, 1, 0], &[]),
        ([256, 64, 28, 28, 64, 1, 1, 1, 1], &[]),
        ([256, 64, 28, 28, 64, 3, 5, 1, 1], &[]),
    ] {
        for pass in [Pass::Output, Pass::InputGradient, Pass::WeightGradient] {
            let product = sized_product(sizes, pass, DType::F32, Math::CUDNN_FMA_MATH);
            assert_eq!(worthwhile(&product), expected, "{sizes:?}, {pass:?}");
        }
    }
    for (dtype, math) in [
        (DType::F32, Math::CUDNN_DEFAULT_MATH),
        (DType::F64, Math::CUDNN_DEFAULT_MATH),
        (DType::BF16, Math::CUDNN_TENSOR_OP_MATH),
    ] {
        assert!(
            worthwhile(&sized_product(LARGE, Pass::Output, dtype, math)).is_empty(),
            "{dtype:?}"
        );
    }
}

/// Two algorithms without a transform, and three with one.
const OUTPUTS: [Algorithm; 5] = [
    Output(Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM),
    Output(Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED),
    Output(Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING),
    Output(Forward::CUDNN_CONVOLUTION_FWD_ALGO_GEMM),
    Output(Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT),
];
const INPUT_GRADIENTS: [Algorithm; 4] = [
    InputGradient(BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1),
    InputGradient(BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED),
    InputGradient(BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING),
    InputGradient(BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT),
];
const WEIGHT_GRADIENTS: [Algorithm; 4] = [
    WeightGradient(BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1),
    WeightGradient(BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED),
    WeightGradient(BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING),
    WeightGradient(BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT),
];

/// Returns the first algorithms for a product if cuDNN suggests algorithms in this order.
fn first<const N: usize>(product: Product, suggested: &[Algorithm]) -> [Algorithm; N] {
    let works =
        |&algorithm| Candidate { algorithm, works: true, deterministic: true, math: product.math };
    let suggested: Vec<_> = suggested.iter().map(works).collect();
    let ranked = ranked(&product, &suggested);
    std::array::from_fn(|place| ranked[place].0)
}

#[test]
fn what_pays_is_tried_first_and_the_rest_in_its_order() {
    let plain = |sizes, pass| sized_product(sizes, pass, DType::F32, Math::CUDNN_FMA_MATH);
    let [precomputed, winograd, tiles, gemm, fft] = OUTPUTS;
    let output = |sizes| first(plain(sizes, Pass::Output), &OUTPUTS);
    assert_eq!(output(LARGE), [fft, winograd, precomputed, tiles, gemm]);
    assert_eq!(output(SMALL), [winograd, precomputed, tiles, gemm, fft]);
    assert_eq!(output([256, 1, 28, 28, 64, 3, 3, 1, 1]), OUTPUTS);
    // No transform is used before a relu, or in 16 bits.
    let products = [
        plain(LARGE, Pass::OutputForRelu),
        sized_product(LARGE, Pass::Output, DType::BF16, Math::CUDNN_TENSOR_OP_MATH),
    ];
    for product in products {
        assert_eq!(first(product, &OUTPUTS), [precomputed, gemm], "{product}");
    }
    let [plainly, winograd, tiles, fft] = INPUT_GRADIENTS;
    let found = first(plain(LARGE, Pass::InputGradient), &INPUT_GRADIENTS);
    assert_eq!(found, [fft, winograd, plainly, tiles]);
    let [plainly, winograd, tiles, fft] = WEIGHT_GRADIENTS;
    let found = first(plain(SMALL, Pass::WeightGradient), &WEIGHT_GRADIENTS);
    assert_eq!(found, [winograd, plainly, tiles, fft]);
}
