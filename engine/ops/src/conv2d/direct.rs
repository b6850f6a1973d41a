//! Direct convolution, for patches of few input pixels.
//!
//! A patch of one grey channel under a 3×3 kernel has nine numbers, and a matrix product would spend its time on copying
//! them. The direct convolution multiplies them in place, for four neighbouring outputs at a time:
//!
//! ```text
//!   x (16 images deep)               one weight, four outputs
//!   · · · · · · ·                    s₀ += w · x[p]
//!   · ■ ■ ■ □ □ □                    s₁ += w · x[p + stride]
//!   · ■ ■ ■ □ □ □      for each w:   s₂ += w · x[p + 2·stride]
//!   · ■ ■ ■ □ □ □                    s₃ += w · x[p + 3·stride]
//! ```
//!
//! The four sums stay in registers for all weights. The gradient of the weights exchanges the roles of weight and output.

use rayon::prelude::*;

use super::geometry::Geometry;
use super::padded_plane::PaddedPlane;
use super::results::{Gradients, Output, Upstream};
use crate::Element;
use crate::kernels::memory::Scratch;
use crate::kernels::simd::{LANES, Simd, add_product, runs, vectorised, vectors, vectors_mut};

/// The largest patch for direct convolution. Larger patches use a matrix product.
pub(super) const LARGEST_PATCH: usize = 32;

/// The number of images that are loaded together. It gives enough tasks for many threads.
const IMAGES: usize = 16 * LANES;

/// The number of neighbouring outputs that are computed together, and share the access to a weight or to its gradient.
const ABREAST: usize = 4;

pub(super) struct Direct<'a> {
    geometry: &'a Geometry,
    /// The offset of each weight's pixel from the first pixel of its patch.
    places: Vec<usize>,
    /// The distance from one patch to the next in the padded plane.
    stride: usize,
    /// The distance from the first patch of an output row to the first of the next.
    pitch: usize,
}

impl<'a> Direct<'a> {
    pub(super) fn new(geometry: &'a Geometry) -> Self {
        let padded = geometry.padded();
        let places = (0..geometry.patch()).map(|place| {
            let (col, rest) = (place % geometry.kernel_w, place / geometry.kernel_w);
            let (row, channel) = (rest % geometry.kernel_h, rest / geometry.kernel_h);
            channel * padded.outer() + row * padded.outer_width + col
        });
        let stride = geometry.plane_stride();
        Self { geometry, places: places.collect(), stride, pitch: stride * padded.outer_width }
    }

    /// Convolves the batch `x`, applies the epilogue and writes `output`.
    pub(super) fn forward<T: Element>(&self, x: &[T], weight: &[T], output: &mut Output<'_, T>) {
        let Self { geometry: g, stride, pitch, .. } = self;
        let unpadded = PaddedPlane::unpadded(g.out_h, g.out_w);
        for images in runs(0..g.batch, IMAGES) {
            let planes = g.load(x, images.clone());
            output.planes(images).for_each(|mut output| {
                let planes = vectors(&planes[output.block * g.block()..][..g.block()]);
                let weights = &weight[output.channel * g.patch()..][..g.patch()];
                let mut sums = Scratch::new(g.pixels() * LANES);
                let sums = vectors_mut(&mut sums);
                vectorised(
                    #[inline(always)]
                    || {
                        for (row, sums) in sums.chunks_exact_mut(g.out_w).enumerate() {
                            let mut first = row * pitch;
                            let (fours, rest) = sums.as_chunks_mut::<ABREAST>();
                            for four in fours {
                                self.multiply(planes, weights, first, four);
                                first += ABREAST * stride;
                            }
                            for one in rest.as_chunks_mut::<1>().0 {
                                self.multiply(planes, weights, first, one);
                                first += stride;
                            }
                        }
                        output.apply_epilogue(sums, unpadded);
                    },
                );
            });
        }
    }

    /// Adds up the gradients of weights and bias. No input's gradient is computed in this way.
    pub(super) fn backward<T: Element>(
        &self,
        x: &[T],
        upstream: &Upstream<'_, T>,
        gradients: &mut Gradients<T>,
    ) {
        let g = self.geometry;
        let Some(dweight) = &mut gradients.weight else { return };
        let unpadded = PaddedPlane::unpadded(g.out_h, g.out_w);
        for images in runs(0..g.batch, IMAGES) {
            let planes = g.load(x, images.clone());
            let channels = dweight.par_chunks_mut(g.patch()).zip(&mut gradients.bias);
            channels.enumerate().for_each(|(channel, (dweight, dbias))| {
                let mut grads = Scratch::new(g.pixels() * LANES);
                let grads = vectors_mut(&mut grads);
                let mut sums = [[T::zero(); LANES]; LARGEST_PATCH];
                let sums = &mut sums[..g.patch()];
                vectorised(
                    #[inline(always)]
                    || {
                        let blocks =
                            runs(images.clone(), LANES).zip(planes.chunks_exact(g.block()));
                        for (images, planes) in blocks {
                            upstream.load(images, channel, unpadded, grads, dbias.as_mut());
                            self.add_weight_gradients(vectors(planes), grads, sums);
                        }
                    },
                );
                for (dweight, sums) in dweight.iter_mut().zip(sums) {
                    *dweight += sums.iter().copied().sum();
                }
            });
        }
    }

    /// Computes `N` neighbouring sums Σ w · x over a patch. The patch of the first sum begins at pixel `first`.
    #[inline(always)]
    fn multiply<T: Element, const N: usize>(
        &self,
        planes: &[Simd<T>],
        weights: &[T],
        first: usize,
        out: &mut [Simd<T>; N],
    ) {
        let mut sums = [[T::zero(); LANES]; N];
        for (&weight, &place) in weights.iter().zip(&self.places) {
            for (nth, sums) in sums.iter_mut().enumerate() {
                let pixel = planes[first + place + nth * self.stride];
                *sums = add_product(*sums, pixel, [weight; LANES]);
            }
        }
        *out = sums;
    }

    /// Adds grad · x over all output pixels to the sums of every weight, one lane per image.
    #[inline(always)]
    fn add_weight_gradients<T: Element>(
        &self,
        planes: &[Simd<T>],
        grads: &[Simd<T>],
        sums: &mut [Simd<T>],
    ) {
        let Self { geometry: g, stride, pitch, .. } = self;
        for (row, grads) in grads.chunks_exact(g.out_w).enumerate() {
            let mut first = row * pitch;
            let (fours, rest) = grads.as_chunks::<ABREAST>();
            for four in fours {
                self.add_abreast(planes, four, first, sums);
                first += ABREAST * stride;
            }
            for &one in rest {
                self.add_abreast(planes, &[one], first, sums);
                first += stride;
            }
        }
    }

    /// Adds the terms of `N` neighbouring outputs to the sums of every weight. The first patch begins at pixel `first`.
    #[inline(always)]
    fn add_abreast<T: Element, const N: usize>(
        &self,
        planes: &[Simd<T>],
        grads: &[Simd<T>; N],
        first: usize,
        sums: &mut [Simd<T>],
    ) {
        for (sum, place) in sums.iter_mut().zip(&self.places) {
            let mut total = *sum;
            for (nth, grad) in grads.iter().enumerate() {
                total = add_product(total, *grad, planes[first + place + nth * self.stride]);
            }
            *sum = total;
        }
    }
}
