//! The epilogue of a convolution: bias, and then possibly relu and average pooling.
//!
//! The epilogue runs while a plane of the output is still in the cache. With 2×2 pooling, only the mean of each four pixels
//! is stored. The backward pass needs one bit of each pixel: the relu mask, which is set where the pixel is above zero.
//!
//! ```text
//! sums (16 images deep)   + b, max(·, 0)    mean of windows     to the tensor
//! ┌──────────┐            ┌──────────┐      ┌─────┐             image 0: ┌─────┐
//! │          │   ──────►  │          │  ──► │     │   ──────►   image 1: │     │ …
//! │          │            │          │      └─────┘                      └─────┘
//! └──────────┘            └──────────┘
//!                          └► above zero?  the relu mask for the backward pass, one bit per pixel
//! ```

use super::geometry::Geometry;
use super::padded_plane::PaddedPlane;
use crate::Element;
use crate::kernels::memory::Scratch;
use crate::kernels::simd::{LANES, Simd, add, scale, vectors_mut};
use crate::kernels::windows::Windows;
use crate::relu::rectified;

/// The relu mask of eight neighbouring pixels: one byte per image, with one bit per pixel.
pub(super) type ReluMask = [u8; LANES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epilogue {
    /// Adds the bias, if there is one.
    Plain,
    /// Adds the bias, applies the relu, and averages over the windows.
    ReluPool(Windows),
}

impl Epilogue {
    /// Returns the rows and columns of a plane after the epilogue.
    pub(super) fn size(&self, geometry: &Geometry) -> (usize, usize) {
        match self {
            Self::Plain => (geometry.out_h, geometry.out_w),
            Self::ReluPool(windows) => (windows.out_height, windows.out_width),
        }
    }

    /// Returns the number of [`ReluMask`]s of one plane.
    pub(super) fn mask_len(&self, geometry: &Geometry) -> usize {
        match self {
            Self::Plain => 0,
            Self::ReluPool(_) => geometry.pixels().div_ceil(8),
        }
    }

    /// Applies the epilogue to a plane of sums, in the upper left part of the padded plane, and
    /// writes one plane of `y` for each image, and the plane's relu mask.
    #[inline(always)]
    pub(super) fn forward<T: Element>(
        &self,
        bias: Option<T>,
        sums: &mut [Simd<T>],
        padded: PaddedPlane,
        relu_mask: &mut [ReluMask],
        y: &mut [&mut [T]],
    ) {
        let zero = T::zero();
        let rows = sums.chunks_exact_mut(padded.outer_width).take(padded.height);
        let rows = rows.map(|row| &mut row[..padded.width]);
        match self {
            Self::Plain => {
                if let Some(bias) = bias {
                    for row in rows {
                        for value in row.as_flattened_mut() {
                            *value += bias;
                        }
                    }
                }
                padded.store(sums, y);
            }
            Self::ReluPool(windows) => {
                let bias = bias.unwrap_or(zero);
                let mut positive = eights(padded);
                let positive = vectors_mut(&mut positive);
                positive[padded.inner()..].fill([false; LANES]);
                for (row, positive) in rows.zip(positive.chunks_exact_mut(padded.width)) {
                    let positive = positive.as_flattened_mut();
                    for (value, positive) in row.as_flattened_mut().iter_mut().zip(positive) {
                        *value = rectified(*value + bias);
                        *positive = *value != zero;
                    }
                }
                pack(positive, relu_mask);
                let share = windows.share::<T>();
                let mut means = Scratch::new(windows.out_plane() * LANES);
                let means = vectors_mut(&mut means);
                windows.for_each(
                    padded.outer_width,
                    #[inline(always)]
                    |out, first| {
                        let mut sum = [zero; LANES];
                        for row in sums[first..].chunks(padded.outer_width).take(windows.kernel) {
                            for pixel in &row[..windows.kernel] {
                                sum = add(sum, *pixel);
                            }
                        }
                        means[out] = scale(sum, share);
                    },
                );
                PaddedPlane::unpadded(windows.out_height, windows.out_width).store(means, y);
            }
        }
    }

    /// Fills `sums` with the gradient of the sums from the gradient of `y`, with zeros outside of
    /// the plane, and adds the total to the gradient `dbias` of the bias, if there is one.
    #[inline(always)]
    pub(super) fn backward<'a, T: Element>(
        &self,
        grad: impl Iterator<Item = &'a [T]> + Clone,
        relu_mask: &[ReluMask],
        padded: PaddedPlane,
        sums: &mut [Simd<T>],
        dbias: Option<&mut T>,
    ) {
        let zero = T::zero();
        match self {
            Self::Plain => padded.load(grad, sums),
            Self::ReluPool(windows) => {
                let share = windows.share::<T>();
                let mut means = Scratch::new(windows.out_plane() * LANES);
                let means = vectors_mut(&mut means);
                PaddedPlane::unpadded(windows.out_height, windows.out_width).load(grad, means);
                sums.fill([zero; LANES]);
                windows.for_each(
                    padded.outer_width,
                    #[inline(always)]
                    |out, first| {
                        let grad = scale(means[out], share);
                        for row in sums[first..].chunks_mut(padded.outer_width).take(windows.kernel)
                        {
                            for pixel in &mut row[..windows.kernel] {
                                *pixel = add(*pixel, grad);
                            }
                        }
                    },
                );
                let mut positive = eights(padded);
                let positive = vectors_mut(&mut positive);
                unpack(relu_mask, positive);
                let rows = sums.chunks_exact_mut(padded.outer_width);
                for (row, positive) in rows.zip(positive.chunks_exact(padded.width)) {
                    let row = &mut row[..padded.width];
                    let positive = positive.as_flattened();
                    for (value, &positive) in row.as_flattened_mut().iter_mut().zip(positive) {
                        *value = if positive { *value } else { zero };
                    }
                }
            }
        }
        if let Some(dbias) = dbias {
            let mut total = [zero; LANES];
            for pixel in sums.iter() {
                total = add(total, *pixel);
            }
            *dbias += total.into_iter().sum();
        }
    }
}

/// Borrows memory for one bool per pixel and image, for a multiple of 8 pixels.
fn eights(padded: PaddedPlane) -> Scratch<bool> {
    Scratch::new(padded.inner().next_multiple_of(8) * LANES)
}

/// Packs bools into bits, eight pixels per byte and the first pixel in the lowest bit.
#[inline(always)]
fn pack(positive: &[Simd<bool>], relu_mask: &mut [ReluMask]) {
    let (eights, _) = positive.as_chunks::<8>();
    for (relu_mask, eight) in relu_mask.iter_mut().zip(eights) {
        let mut bits = [0; LANES];
        for pixel in eight.iter().rev() {
            for lane in 0..LANES {
                bits[lane] = bits[lane] << 1 | u8::from(pixel[lane]);
            }
        }
        *relu_mask = bits;
    }
}

/// The inverse of [`pack`].
#[inline(always)]
fn unpack(relu_mask: &[ReluMask], positive: &mut [Simd<bool>]) {
    let (eights, _) = positive.as_chunks_mut::<8>();
    for (relu_mask, eight) in relu_mask.iter().zip(eights) {
        let mut pixels = [[false; LANES]; 8];
        for (place, pixel) in pixels.iter_mut().enumerate() {
            for lane in 0..LANES {
                pixel[lane] = relu_mask[lane] >> place & 1 != 0;
            }
        }
        *eight = pixels;
    }
}
