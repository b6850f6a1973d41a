//! The rule by which algorithms are chosen.

use std::collections::VecDeque;

use candle_core::DType;
use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnConvolutionBwdFilterAlgo_t as Algo, cudnnMathType_t as Math,
};

use super::super::Pass;
use super::super::algorithm::Algorithm;
use super::super::choice::{Candidate, Choice, LARGEST_WORKSPACE, Way, ranked, take_first};
use super::product_of;

const FIRST: Algorithm = Algorithm::WeightGradient(Algo::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0);
const SECOND: Algorithm = Algorithm::WeightGradient(Algo::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);

const WINOGRAD: Algo = Algo::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED;

/// A good one, for what f32 asks for without TF32.
const GOOD: Candidate =
    Candidate { algorithm: FIRST, works: true, deterministic: true, math: Math::CUDNN_FMA_MATH };

fn first(candidates: &[Candidate], asked: Math) -> Option<Way> {
    ranked(candidates, asked, false).front().copied()
}

#[test]
fn the_first_that_works_and_is_deterministic_is_taken() {
    let second = Candidate { algorithm: SECOND, ..GOOD };
    let taken =
        |candidate| first(&[candidate, second], Math::CUDNN_FMA_MATH).map(|way| way.algorithm);
    assert_eq!(taken(GOOD), Some(FIRST));
    assert_eq!(taken(Candidate { works: false, ..GOOD }), Some(SECOND));
    assert_eq!(taken(Candidate { deterministic: false, ..GOOD }), Some(SECOND));
    assert_eq!(first(&[], Math::CUDNN_FMA_MATH), None);
    assert_eq!(first(&[Candidate { works: false, ..GOOD }], Math::CUDNN_FMA_MATH), None);
    let in_any_order = Candidate { deterministic: false, ..GOOD };
    let taken = ranked(&[in_any_order], Math::CUDNN_FMA_MATH, true);
    assert_eq!(taken.front().map(|way| way.algorithm), Some(FIRST));
    // The other stands behind it.
    let both = ranked(&[GOOD, second], Math::CUDNN_FMA_MATH, false);
    assert_eq!(both.iter().map(|way| way.algorithm).collect::<Vec<_>>(), [FIRST, SECOND]);
}

#[test]
fn memory_has_a_limit_and_nobody_asks_for_more_than_one_needs() {
    let ways = [FIRST, SECOND].map(|algorithm| Way { algorithm, math: Math::CUDNN_FMA_MATH });
    // What is taken, how often it was asked for memory, and how many are left.
    let taken = |of_first: Option<usize>| {
        let (mut left, mut asked) = (VecDeque::from(ways), 0);
        let choice = take_first(&mut left, |way| {
            asked += 1;
            if way == ways[0] { of_first } else { Some(0) }
        });
        (choice, asked, left.len())
    };
    let choice = |way, workspace| Some(Choice { way, workspace });
    assert_eq!(taken(Some(LARGEST_WORKSPACE)), (choice(ways[0], LARGEST_WORKSPACE), 1, 1));
    assert_eq!(taken(Some(LARGEST_WORKSPACE + 1)), (choice(ways[1], 0), 2, 0));
    assert_eq!(taken(None), (choice(ways[1], 0), 2, 0));
    assert_eq!(take_first(&mut VecDeque::from(ways), |_| None), None);
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
        let found = [FMA, DEFAULT, TENSOR, ANY]
            .map(|math| first(&[Candidate { math, ..GOOD }], asked).map(|way| way.math));
        assert_eq!(found, expected, "{asked:?}");
    }
}

#[test]
fn transforms_suit_neither_a_rectifier_nor_bf16() {
    use candle_core::cuda_backend::cudarc::cudnn::sys::cudnnConvolutionFwdAlgo_t as Algo;
    for (algorithm, transforms) in [
        (Algo::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, false),
        (Algo::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, false),
        (Algo::CUDNN_CONVOLUTION_FWD_ALGO_FFT, true),
        (Algo::CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, true),
        (Algo::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, true),
        (Algo::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, true),
    ] {
        let candidate = Candidate { algorithm: Algorithm::Output(algorithm), ..GOOD };
        for (pass, dtype, either) in [
            (Pass::Output, DType::F32, true),
            (Pass::OutputForRelu, DType::F32, false),
            (Pass::Output, DType::BF16, false),
        ] {
            let product = product_of(pass, dtype, Math::CUDNN_FMA_MATH);
            assert_eq!(
                candidate.suits(&product),
                either || !transforms,
                "{algorithm:?}, {product}"
            );
        }
    }
    let gradient = Algorithm::WeightGradient(WINOGRAD);
    let bf16 = product_of(Pass::WeightGradient, DType::BF16, Math::CUDNN_TENSOR_OP_MATH);
    assert!(!Candidate { algorithm: gradient, ..GOOD }.suits(&bf16));
    assert!(GOOD.suits(&bf16));
}

/// Behind what was suggested, each once, and none that rounds more than was asked for.
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
        let usual: Vec<_> = Candidate::usual(&product).collect();
        let found = ranked(&usual, math, false);
        let found: Vec<_> = found.iter().map(|way| (way.algorithm, way.math)).collect();
        let expected: Vec<_> = expected.iter().map(|&math| (SECOND, math)).collect();
        assert_eq!(found, expected, "{product}");
    }
}
