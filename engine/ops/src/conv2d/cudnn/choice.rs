//! The choice of an algorithm for a product: a rule about shapes and cuDNN's suggestions.

use candle_core::DType;
use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnConvolutionBwdDataAlgo_t as BackwardData,
    cudnnConvolutionBwdFilterAlgo_t as BackwardFilter, cudnnConvolutionFwdAlgo_t as Forward,
    cudnnMathType_t as Math,
};
use itertools::Itertools as _;

use super::Product;
use super::calls::{Algorithm, Candidate};
use crate::conv2d::geometry::Pass;

/// The largest workspace of an algorithm in bytes: 1 GiB. Each thread keeps its workspace.
pub(super) const LARGEST_WORKSPACE: usize = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) algorithm: Algorithm,
    pub(super) math: Math,
    /// The size of the workspace in bytes.
    pub(super) workspace: usize,
}

/// Ranks the algorithms that may compute a product, with their math, the best first: those with a transform that pays, cuDNN's
/// suggestions in their order, and the usual ones, as cuDNN's heuristics may suggest nothing for a shape. All of them work,
/// are deterministic, and round no more than the product allows.
pub(super) fn ranked(product: &Product, suggested: &[Candidate]) -> Vec<(Algorithm, Math)> {
    let maths = [product.math, Math::CUDNN_DEFAULT_MATH, Math::CUDNN_FMA_MATH];
    let candidate = |(&algorithm, math)| {
        let (works, deterministic) = (true, true);
        Candidate { algorithm, works, deterministic, math }
    };
    let usual = usual(product.pass).iter().cartesian_product(maths).map(candidate);
    // Transforms leave rounding errors in place of zeros. In bf16 they may also round to 16 bits.
    let as_they_are = product.pass == Pass::OutputForRelu || product.dtype == DType::BF16;
    let transforms = worthwhile(product);
    let place = |of: Option<Transform>| {
        let place = transforms.iter().position(|&worthwhile| of == Some(worthwhile));
        place.unwrap_or(transforms.len())
    };
    let candidates = suggested.iter().copied().chain(usual);
    candidates
        .filter(|candidate| candidate.works && candidate.deterministic)
        .filter(|candidate| !as_they_are || candidate.algorithm.transform().is_none())
        .filter_map(|candidate| Some((candidate.algorithm, granted(product.math, candidate.math)?)))
        .unique()
        .sorted_by_key(|(algorithm, _)| place(algorithm.transform()))
        .collect()
}

/// Returns the algorithms that cuDNN documents for every shape. Each is deterministic.
fn usual(pass: Pass) -> &'static [Algorithm] {
    match pass {
        Pass::Output | Pass::OutputForRelu => &[
            Algorithm::Output(Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM),
            Algorithm::Output(Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM),
        ],
        Pass::InputGradient => {
            &[Algorithm::InputGradient(BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1)]
        }
        Pass::WeightGradient => {
            &[Algorithm::WeightGradient(BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1)]
        }
    }
}

/// Returns the first algorithm that needs no more than [`LARGEST_WORKSPACE`]. `workspace` asks cuDNN for an algorithm's bytes,
/// and gets `None` if it does not work after all. It is not called for the algorithms behind the choice.
pub(super) fn first_that_fits(
    ranked: &[(Algorithm, Math)],
    mut workspace: impl FnMut(Algorithm, Math) -> Option<usize>,
) -> Option<Choice> {
    ranked.iter().find_map(|&(algorithm, math)| {
        let workspace = workspace(algorithm, math).filter(|&size| size <= LARGEST_WORKSPACE)?;
        Some(Choice { algorithm, math, workspace })
    })
}

/// Returns the math for an algorithm, or `None` if the `wanted` math rounds more than `asked`.
fn granted(asked: Math, wanted: Math) -> Option<Math> {
    use Math::{
        CUDNN_DEFAULT_MATH as DEFAULT, CUDNN_FMA_MATH as FMA,
        CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION as ANY,
    };
    match (asked, wanted) {
        // The default math would allow TF32 for f32.
        (FMA, FMA | DEFAULT) => Some(FMA),
        (FMA, _) => None,
        // This math would round f32 to 16 bits.
        (_, ANY) => None,
        (_, wanted) => Some(wanted),
    }
}

/// The transform of operands and sums, as cuDNN names it: Fourier's of tiles or of a whole plane, or Winograd's. An algorithm
/// with a transform multiplies less, and leaves a rounding error of either sign where all products are zero.
pub(super) type Transform = &'static str;

const FFT_TILING: Transform = "_FFT_TILING";
pub(super) const FFT: Transform = "_FFT";
pub(super) const WINOGRAD: Transform = "_WINOGRAD";

impl Algorithm {
    /// Returns the algorithm's transform, or `None` if the algorithm multiplies the operands as they are.
    pub(super) fn transform(self) -> Option<Transform> {
        let name = format!("{self:?}");
        [FFT_TILING, FFT, WINOGRAD].into_iter().find(|transform| name.contains(transform))
    }
}

/// Returns the transforms that pay for a product, the best first.
///
/// Transforms pay for f32 without tensor cores, for 3×3 kernels at stride 1 with padding 1 and many channels on both sides,
/// which share the cost of the transforms. A plain kernel takes 9 multiplications for each pixel of the output and each pair
/// of channels. Winograd's transform takes 36 for 4×4 pixels. The Fourier transform takes about 2 for each number of a plane
/// that is padded to a power of two: as few, if the plane nearly fills it.
///
/// Measured on an H200 with 256 images (`book/data/gpu-convolutions.json`), for 12 products of ResNet-18: cuDNN suggests a
/// slower algorithm first for 8, by up to a factor of 7, and a step took 31.1 ms instead of 19.0 ms. With tensor cores, its
/// first suggestion was the best for all. The rule assumes that other GPUs, batches and planes behave alike.
pub(super) fn worthwhile(product: &Product) -> &'static [Transform] {
    let g = &product.geometry;
    let fits = (g.kernel_h, g.kernel_w, g.stride, g.padding) == (3, 3, 1, 1);
    let channels = g.in_channels.min(g.out_channels);
    let plain = product.dtype == DType::F32 && product.math == Math::CUDNN_FMA_MATH;
    if !(fits && channels >= MANY_CHANNELS && plain) {
        return &[];
    }
    let padded = |len: usize| (len + 2).next_power_of_two();
    let (plane, padded) = (g.height * g.width, padded(g.height) * padded(g.width));
    // Planes that fill three quarters of the padded plane: 14×14 and 28×28 do; 7×7 and smaller ones do not.
    if 4 * plane >= 3 * padded && padded <= LARGEST_FOR_FFT {
        &[FFT, WINOGRAD]
    } else {
        &[WINOGRAD]
    }
}

/// The fewest channels with which all three products were measured to be faster with a transform.
const MANY_CHANNELS: usize = 64;
/// Pixels of the largest padded plane for which the Fourier transform was faster: 32×32.
const LARGEST_FOR_FFT: usize = 1 << 10;
