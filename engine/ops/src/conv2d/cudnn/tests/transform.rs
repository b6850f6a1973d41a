//! For which products a transform pays, and what follows from it.

use candle_core::DType;
use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnConvolutionBwdDataAlgo_t as BackwardData,
    cudnnConvolutionBwdFilterAlgo_t as BackwardFilter, cudnnConvolutionFwdAlgo_t as Forward,
    cudnnMathType_t as Math,
};

use super::super::Pass;
use super::super::algorithm::Algorithm::{self, InputGradient, Output, WeightGradient};
use super::super::choice::{Candidate, ways};
use super::super::product::Product;
use super::super::transform::Transform::{Fft, Winograd};
use super::super::transform::worthwhile;
use crate::conv2d::formula::geometry;

/// Of ResNet-18: a padded plane is 32×32.
const LARGE: [usize; 9] = [256, 64, 28, 28, 64, 3, 3, 1, 1];
/// 8×8.
const SMALL: [usize; 9] = [256, 512, 4, 4, 512, 3, 3, 1, 1];

fn product(sizes: [usize; 9], pass: Pass, dtype: DType, math: Math) -> Product {
    Product { geometry: geometry(sizes), dtype, pass, math }
}

#[test]
fn it_pays_for_small_kernels_of_many_channels_in_f32() {
    let plain = |sizes| {
        let of = |pass| worthwhile(&product(sizes, pass, DType::F32, Math::CUDNN_FMA_MATH));
        let transforms = of(Pass::Output);
        assert_eq!(of(Pass::InputGradient), transforms, "{sizes:?}");
        assert_eq!(of(Pass::WeightGradient), transforms, "{sizes:?}");
        transforms
    };
    // What was measured, and taken to be alike with other numbers of images.
    assert_eq!(plain(LARGE), [Fft, Winograd]);
    assert_eq!(plain([32, 128, 14, 14, 128, 3, 3, 1, 1]), [Fft, Winograd]);
    assert_eq!(plain([32, 256, 7, 7, 256, 3, 3, 1, 1]), [Winograd]);
    assert_eq!(plain(SMALL), [Winograd]);
    // Planes that are larger, smaller, long and narrow, or that fill half of a padded one.
    assert_eq!(plain([8, 64, 56, 56, 64, 3, 3, 1, 1]), [Winograd]);
    assert_eq!(plain([8, 64, 6, 6, 64, 3, 3, 1, 1]), [Winograd]);
    assert_eq!(plain([8, 64, 30, 3, 64, 3, 3, 1, 1]), [Winograd]);
    assert_eq!(plain([8, 64, 23, 23, 64, 3, 3, 1, 1]), [Winograd]);
    for sizes in [
        // Few channels on one side.
        [256, 1, 28, 28, 64, 3, 3, 1, 1],
        [256, 64, 28, 28, 32, 3, 3, 1, 1],
        // Steps of two, no padding, other kernels.
        [256, 64, 28, 28, 128, 3, 3, 2, 1],
        [256, 64, 28, 28, 64, 3, 3, 1, 0],
        [256, 64, 28, 28, 64, 1, 1, 1, 1],
        [256, 64, 28, 28, 64, 3, 5, 1, 1],
    ] {
        assert_eq!(plain(sizes), [], "{sizes:?}");
    }
    for (dtype, math) in [
        (DType::F32, Math::CUDNN_DEFAULT_MATH),
        (DType::F64, Math::CUDNN_DEFAULT_MATH),
        (DType::BF16, Math::CUDNN_TENSOR_OP_MATH),
    ] {
        assert_eq!(worthwhile(&product(LARGE, Pass::Output, dtype, math)), [], "{dtype:?}");
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

/// The first algorithms for a product, of those that are suggested in this order.
fn first<const N: usize>(product: Product, suggested: &[Algorithm]) -> [Algorithm; N] {
    let works =
        |&algorithm| Candidate { algorithm, works: true, deterministic: true, math: product.math };
    let suggested: Vec<_> = suggested.iter().map(works).collect();
    let ways = ways(&product, &suggested, false);
    std::array::from_fn(|place| ways[place].algorithm)
}

#[test]
fn what_pays_is_tried_first_and_the_rest_in_its_order() {
    let plain = |sizes, pass| product(sizes, pass, DType::F32, Math::CUDNN_FMA_MATH);
    let [precomputed, winograd, tiles, gemm, fft] = OUTPUTS;
    let output = |sizes| first(plain(sizes, Pass::Output), &OUTPUTS);
    assert_eq!(output(LARGE), [fft, winograd, precomputed, tiles, gemm]);
    assert_eq!(output(SMALL), [winograd, precomputed, tiles, gemm, fft]);
    assert_eq!(output([256, 1, 28, 28, 64, 3, 3, 1, 1]), OUTPUTS);
    // Nothing is transformed in front of a relu, or in 16 bits.
    let products = [
        plain(LARGE, Pass::OutputForRelu),
        product(LARGE, Pass::Output, DType::BF16, Math::CUDNN_TENSOR_OP_MATH),
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
