//! Which algorithm computes a product: a rule about shapes and about what cuDNN suggests.

use candle_core::DType;
use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnConvolutionBwdDataAlgo_t as BackwardData,
    cudnnConvolutionBwdFilterAlgo_t as BackwardFilter, cudnnConvolutionFwdAlgo_t as Forward,
    cudnnMathType_t as Math,
};
use itertools::Itertools as _;

use super::algorithm::{Algorithm, Candidate, usual};
use super::{Pass, Product};

/// Bytes of workspace that an algorithm may need: 1 GiB. A thread keeps them.
pub(super) const LARGEST_WORKSPACE: usize = 1 << 30;

/// The algorithm that computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) algorithm: Algorithm,
    pub(super) math: Math,
    /// Bytes of memory to work in.
    pub(super) workspace: usize,
}

/// The algorithms that may compute a product, each with the math that it may use, the best first.
///
/// They work, are deterministic, and round no more than the product allows. Those with a transform that pays come first,
/// then the others in the order in which cuDNN suggests them. The usual ones come last: cuDNN's heuristics may have nothing
/// to say of a shape.
pub(super) fn ranked(product: &Product, suggested: &[Candidate]) -> Vec<(Algorithm, Math)> {
    let maths = [product.math, Math::CUDNN_DEFAULT_MATH, Math::CUDNN_FMA_MATH];
    let usual = usual(product.pass).into_iter().cartesian_product(maths);
    let usual = usual.map(|(algorithm, math)| Candidate {
        algorithm,
        works: true,
        deterministic: true,
        math,
    });
    // Transforms leave rounding errors where there were zeros; and in bf16 perhaps those of 16 bits on the way.
    let as_they_are = product.pass == Pass::OutputForRelu || product.dtype == DType::BF16;
    let transforms = worthwhile(product);
    let place = |algorithm: Algorithm| {
        let transform = algorithm.transform();
        let place = transforms.iter().position(|&worthwhile| transform == Some(worthwhile));
        place.unwrap_or(transforms.len())
    };
    let candidates = suggested.iter().copied().chain(usual);
    candidates
        .filter(|candidate| candidate.works && candidate.deterministic)
        .filter(|candidate| !as_they_are || candidate.algorithm.transform().is_none())
        .filter_map(|candidate| Some((candidate.algorithm, granted(product.math, candidate.math)?)))
        .unique()
        .sorted_by_key(|&(algorithm, _)| place(algorithm))
        .collect()
}

/// The first algorithm that makes do with [`LARGEST_WORKSPACE`].
///
/// `workspace` returns the bytes that one needs, `None` if it does not work after all. Each is a question to cuDNN, so those
/// behind the choice are not asked about.
pub(super) fn first_that_fits(
    ranked: &[(Algorithm, Math)],
    mut workspace: impl FnMut(Algorithm, Math) -> Option<usize>,
) -> Option<Choice> {
    ranked.iter().find_map(|&(algorithm, math)| {
        let workspace = workspace(algorithm, math).filter(|&size| size <= LARGEST_WORKSPACE)?;
        Some(Choice { algorithm, math, workspace })
    })
}

/// The math for an algorithm that wants `wanted`; `None` if that rounds more than `asked`.
fn granted(asked: Math, wanted: Math) -> Option<Math> {
    use Math::{
        CUDNN_DEFAULT_MATH as DEFAULT, CUDNN_FMA_MATH as FMA,
        CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION as ANY,
    };
    match (asked, wanted) {
        // For f32, the default would let TF32 in.
        (FMA, FMA | DEFAULT) => Some(FMA),
        (FMA, _) => None,
        // It would cut f32 down to 16 bits.
        (_, ANY) => None,
        (_, wanted) => Some(wanted),
    }
}

/// What an algorithm transforms operands and sums with: it then multiplies less, and leaves a rounding error of either sign
/// where products of zeros were added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transform {
    /// Fourier's, of a whole plane at once.
    Fft,
    /// Fourier's, of tiles of a plane.
    FftTiling,
    /// Winograd's.
    Winograd,
}

/// The transforms that pay for a product, the best first: none, or of 3×3 kernels in f32, on units that are no tensor cores,
/// with many channels on both sides.
///
/// Such a kernel is 9 multiplications for each pixel of the output and each pair of channels. Winograd's transform makes do
/// with 36 for 4×4 pixels. Fourier's has about 2 for each number of a plane that is padded to a power of two: as few, if the
/// plane nearly fills that. The transforms themselves cost something for each image and channel, and for each pair of channels
/// of the kernel, so many channels have to share them.
///
/// That is why there is such a rule; what it says was measured (`book/data/gpu-convolutions.json`), on an H200, with 256 images.
/// cuDNN's heuristics put a slower algorithm first in 8 of the 12 products of ResNet-18 that it is about, by up to a factor of 7. A
/// step took 31.1 ms as suggested, and takes 19.0 ms by this rule. With tensor cores, cuDNN's first suggestion was the best for
/// all 12. Of other numbers of images, planes between the measured ones (28×28, 14×14, 7×7, 4×4) and other GPUs nothing was
/// measured: the rule takes them to be alike.
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
    // Planes that fill three quarters of a padded one: 14×14 and 28×28 do, 4×4 and 7×7 do not, nor any smaller one.
    if 4 * plane >= 3 * padded && padded <= LARGEST_FOR_FFT {
        &[Transform::Fft, Transform::Winograd]
    } else {
        &[Transform::Winograd]
    }
}

/// The fewest with which all three products were measured to gain by it.
const MANY_CHANNELS: usize = 64;
/// Pixels of the largest padded plane with which Fourier's transform was measured to be the faster one: 32×32.
const LARGEST_FOR_FFT: usize = 1 << 10;

impl Algorithm {
    /// `None` if it multiplies the operands as they are.
    pub(super) fn transform(self) -> Option<Transform> {
        use Transform::{Fft, FftTiling, Winograd};
        match self {
            Self::Output(algorithm) => match algorithm {
                Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT => Some(Fft),
                Forward::CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING => Some(FftTiling),
                Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD
                | Forward::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED => Some(Winograd),
                _ => None,
            },
            Self::InputGradient(algorithm) => match algorithm {
                BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT => Some(Fft),
                BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING => Some(FftTiling),
                BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD
                | BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED => Some(Winograd),
                _ => None,
            },
            Self::WeightGradient(algorithm) => match algorithm {
                BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT => Some(Fft),
                BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING => Some(FftTiling),
                BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD
                | BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED => {
                    Some(Winograd)
                }
                _ => None,
            },
        }
    }
}
