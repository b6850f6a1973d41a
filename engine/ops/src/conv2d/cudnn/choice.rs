//! Which algorithms it may be, and in which order: a rule about lists, which needs no GPU.

use std::collections::VecDeque;

use candle_core::DType;
use candle_core::cuda_backend::cudarc::cudnn::sys::cudnnMathType_t as Math;
use itertools::Itertools as _;

use super::Pass;
use super::algorithm::{Algorithm, usual};
use super::product::Product;
use super::transform::{Transform, worthwhile};

/// Bytes of memory that an algorithm may ask for: 1 GiB. A thread keeps them.
pub(super) const LARGEST_WORKSPACE: usize = 1 << 30;

/// What cuDNN says of an algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) algorithm: Algorithm,
    /// Whether it can do what was asked.
    pub(super) works: bool,
    pub(super) deterministic: bool,
    /// The units that it would multiply with.
    pub(super) math: Math,
}

impl Candidate {
    /// What is tried where cuDNN suggests nothing else that may be taken.
    ///
    /// Its heuristics leave out what it can do all the same, or have nothing to say of a shape.
    pub(super) fn usual(product: &Product) -> impl Iterator<Item = Self> {
        let maths = [product.math, Math::CUDNN_DEFAULT_MATH, Math::CUDNN_FMA_MATH];
        let with = move |algorithm| {
            maths.map(|math| Self { algorithm, works: true, deterministic: true, math })
        };
        usual(product.pass).into_iter().flat_map(with)
    }

    /// Whether it gives what was asked for, whatever the order in which it adds up.
    pub(super) fn suits(&self, product: &Product) -> bool {
        // Transforms leave rounding errors where there were zeros; and in bf16 perhaps those of 16 bits on the way.
        let as_they_are = product.pass == Pass::OutputForRelu || product.dtype == DType::BF16;
        !(as_they_are && self.algorithm.transform().is_some())
    }
}

/// Moves those with a transform that pays to the front; otherwise they stay in their order.
fn prefer(candidates: &mut [Candidate], transforms: &[Transform]) {
    candidates.sort_by_key(|candidate| {
        let transform = candidate.algorithm.transform();
        let place = transforms.iter().position(|&worthwhile| transform == Some(worthwhile));
        place.unwrap_or(transforms.len())
    });
}

/// An algorithm, and what it is told to multiply with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Way {
    pub(super) algorithm: Algorithm,
    pub(super) math: Math,
}

/// A way that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) way: Way,
    /// Bytes of memory to work in.
    pub(super) workspace: usize,
}

/// The ways for a product, of those that were suggested for it and then of the usual ones, each once: the first that turns out
/// to do is to be taken.
pub(super) fn ways(product: &Product, suggested: &[Candidate], any_order: bool) -> VecDeque<Way> {
    let all = suggested.iter().copied().chain(Candidate::usual(product));
    let mut suitable: Vec<_> = all.filter(|candidate| candidate.suits(product)).collect();
    prefer(&mut suitable, worthwhile(product));
    ranked(&suitable, product.math, any_order)
}

/// Those that work, are deterministic unless `any_order` will do, and round no more than `asked` lets them, in the
/// candidates' order, each once.
pub(super) fn ranked(candidates: &[Candidate], asked: Math, any_order: bool) -> VecDeque<Way> {
    let usable = candidates
        .iter()
        .filter(|candidate| candidate.works && (candidate.deterministic || any_order));
    let way = |&Candidate { algorithm, math, .. }: &Candidate| {
        Some(Way { algorithm, math: granted(asked, math)? })
    };
    usable.filter_map(way).unique().collect()
}

/// Takes the first off the list that makes do with [`LARGEST_WORKSPACE`], with whatever is before it.
///
/// `workspace` tells the bytes that one needs, `None` if it does not work after all. Each is a question to cuDNN, so of those
/// behind it nobody asks.
pub(super) fn take_first(
    ways: &mut VecDeque<Way>,
    mut workspace: impl FnMut(Way) -> Option<usize>,
) -> Option<Choice> {
    while let Some(way) = ways.pop_front() {
        if let Some(workspace) = workspace(way).filter(|&size| size <= LARGEST_WORKSPACE) {
            return Some(Choice { way, workspace });
        }
    }
    None
}

/// What an algorithm is told to multiply with, if it wants `wanted`; `None` if that rounds more than `asked`.
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
