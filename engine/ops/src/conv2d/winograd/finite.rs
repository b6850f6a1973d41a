//! Results that are not finite are computed again, by [`Im2col`].
//!
//! In a plain convolution a NaN or an infinity reaches the outputs that read it, and no others.
//! Winograd's transforms mix the numbers of a tile. Three cases then go wrong:
//!
//! | operands | plain | Winograd's |
//! | --- | --- | --- |
//! | a NaN among the pixels | NaN where a kernel sees it | NaN all over its tiles |
//! | an infinity | an infinity | inf − inf = NaN |
//! | finite, but close to the largest number of the type | finite | the transforms overflow |
//!
//! The zero mask of [`mask`](super::zero_mask) would add a fourth case: zeros times a NaN are NaN, and not zero.
//!
//! Each plane of outputs in which a number is not finite is therefore replaced, and so is each such
//! plane of the input's gradient and each such kernel of the weight's gradient. All other planes
//! and kernels keep their bits, independent of the contents of other images and channels.
//!
//! A check of the results is enough, because a number that is not finite stays so in every sum and product. The check costs
//! one addition for each result: a sum is finite only if all its terms are.

use super::Winograd;
use crate::Element;
use crate::backward::Wanted;
use crate::conv2d::geometry::Plane;
use crate::conv2d::im2col::Im2col;
use crate::conv2d::padded_plane::PaddedPlane;
use crate::conv2d::results::{Gradients, Output, Upstream};
use crate::kernels::simd::{LANES, Simd, add};

/// The sum of results, for each image of a block.
pub(super) struct Check<T>(Simd<T>);

impl<T: Element> Check<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([T::zero(); LANES])
    }

    /// Adds up a plane in four sums: an addition waits for the previous one to the same sum.
    #[inline(always)]
    pub(super) fn of(plane: &[Simd<T>]) -> Self {
        let mut sums = [[T::zero(); LANES]; 4];
        let (fours, rest) = plane.as_chunks::<4>();
        for four in fours {
            for (sum, results) in sums.iter_mut().zip(four) {
                *sum = add(*sum, *results);
            }
        }
        for results in rest {
            sums[0] = add(sums[0], *results);
        }
        Self(add(add(sums[0], sums[1]), add(sums[2], sums[3])))
    }

    #[inline(always)]
    pub(super) fn add(&mut self, results: &Simd<T>) {
        self.0 = add(self.0, *results);
    }

    /// Returns whether all results are finite. The answer is also no if their sum overflows.
    #[inline(always)]
    pub(super) fn passes(&self) -> bool {
        self.0.into_iter().all(T::is_finite)
    }
}

/// Returns which of a block's first `images` images have a number in `plane` that is not finite.
#[cold]
pub(super) fn not_finite<T: Element>(
    plane: &[Simd<T>],
    padded: PaddedPlane,
    images: usize,
) -> Vec<usize> {
    let rows = || plane.chunks_exact(padded.outer_width).skip(padded.padding).take(padded.height);
    let inside = || rows().flat_map(|row| &row[padded.padding..][..padded.width]);
    (0..images).filter(|&image| inside().any(|pixel| !pixel[image].is_finite())).collect()
}

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Computes these planes of `output` again.
    pub(super) fn replace_outputs<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        output: &mut Output<'_, T>,
        planes: &[Plane],
    ) {
        if !planes.is_empty() {
            let mut im2col = Output::new(output.geometry, output.epilogue, output.bias);
            Im2col(self.geometry).forward(x, weight, &mut im2col);
            output.take(&im2col, planes);
        }
    }

    /// Computes these planes of the input's gradient and these kernels of the weight's again.
    pub(super) fn replace_gradients<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        upstream: &Upstream<'_, T>,
        gradients: &mut Gradients<T>,
        (planes, kernels): (&[Plane], &[usize]),
    ) {
        if !(planes.is_empty() && kernels.is_empty()) {
            let wanted = Wanted { input: !planes.is_empty(), weights: !kernels.is_empty() };
            let mut im2col = Gradients::new(self.geometry, wanted, false);
            Im2col(self.geometry).backward(x, weight, upstream, &mut im2col);
            gradients.take(self.geometry, &im2col, planes, kernels);
        }
    }
}
