//! What follows a convolution while its output is still in the cache: bias, and then rectifier and pooling.
//!
//! Written to memory and read again, a plane of LeNet's first convolution costs more time than computing
//! it. So a plane is finished right where it was made, and of its four pixels under a 2×2 window only their
//! mean is ever stored. What the way back needs of them is one truth value a pixel: was it above zero?
//!
//! ```text
//! sums (16 images deep)   + b, max(·, 0)    mean of windows     to the tensor
//! ┌──────────┐            ┌──────────┐      ┌─────┐             image 0: ┌─────┐
//! │          │   ──────►  │          │  ──► │     │   ──────►   image 1: │     │ …
//! │          │            │          │      └─────┘                      └─────┘
//! └──────────┘            └──────────┘
//!                          └► above zero?  kept for the way back, a bit a pixel
//! ```

use super::frame::Frame;
use super::geometry::Geometry;
use crate::Element;
use crate::avg_pool2d::Windows;
use crate::lanes::{LANES, Lane, add, lanes_mut, scale};
use crate::relu::rectified;
use crate::scratch::Scratch;

/// Which of eight neighbouring pixels are above zero: a bit for each, and a lane for each image.
pub(super) type Signs = [u8; LANES];

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// Nothing: the bias is added, if there is one, that is all.
    Plain,
    /// max(·, 0), then the mean over windows.
    ReluPool(Windows),
}

impl Finish {
    /// Rows and columns of a finished plane.
    pub(super) fn size(&self, geometry: &Geometry) -> (usize, usize) {
        match self {
            Self::Plain => (geometry.out_h, geometry.out_w),
            Self::ReluPool(windows) => (windows.out_height, windows.out_width),
        }
    }

    /// How many [`Signs`] of a plane the way back needs.
    pub(super) fn signs(&self, geometry: &Geometry) -> usize {
        match self {
            Self::Plain => 0,
            Self::ReluPool(_) => geometry.pixels().div_ceil(8),
        }
    }

    /// From a plane of sums to one plane of `y` for each image.
    ///
    /// `sums` lie in the upper left of `frame`; `signs` are [as many](Self::signs) as are needed.
    #[inline(always)]
    pub(super) fn forward<T: Element>(
        &self,
        bias: Option<T>,
        sums: &mut [Lane<T>],
        frame: Frame,
        signs: &mut [Signs],
        y: &mut [&mut [T]],
    ) {
        let zero = T::zero();
        let rows = sums.chunks_exact_mut(frame.outer_width).take(frame.height);
        let rows = rows.map(|row| &mut row[..frame.width]);
        match self {
            Self::Plain => {
                if let Some(bias) = bias {
                    for row in rows {
                        for value in row.as_flattened_mut() {
                            *value += bias;
                        }
                    }
                }
                frame.store(sums, y);
            }
            Self::ReluPool(windows) => {
                let bias = bias.unwrap_or(zero);
                let mut positive = eights(frame);
                let positive = lanes_mut(&mut positive);
                positive[frame.inner()..].fill([false; LANES]);
                for (row, positive) in rows.zip(positive.chunks_exact_mut(frame.width)) {
                    let positive = positive.as_flattened_mut();
                    for (value, positive) in row.as_flattened_mut().iter_mut().zip(positive) {
                        *value = rectified(*value + bias);
                        *positive = *value != zero;
                    }
                }
                pack(positive, signs);
                let share = windows.share::<T>();
                let mut means = Scratch::new(windows.out_plane() * LANES);
                let means = lanes_mut(&mut means);
                windows.for_each(
                    frame.outer_width,
                    #[inline(always)]
                    |out, first| {
                        let mut sum = [zero; LANES];
                        for row in sums[first..].chunks(frame.outer_width).take(windows.kernel) {
                            for pixel in &row[..windows.kernel] {
                                sum = add(sum, *pixel);
                            }
                        }
                        means[out] = scale(sum, share);
                    },
                );
                Frame::tight(windows.out_height, windows.out_width).store(means, y);
            }
        }
    }

    /// From the gradient of `y` to that of the sums: fills all of `sums`, zeros outside of the plane.
    ///
    /// To the gradient of the bias, where there is one, it adds the sum of them all.
    #[inline(always)]
    pub(super) fn backward<'a, T: Element>(
        &self,
        grad: impl Iterator<Item = &'a [T]> + Clone,
        signs: &[Signs],
        frame: Frame,
        sums: &mut [Lane<T>],
        dbias: Option<&mut T>,
    ) {
        let zero = T::zero();
        match self {
            Self::Plain => frame.load(grad, sums),
            Self::ReluPool(windows) => {
                let share = windows.share::<T>();
                let mut means = Scratch::new(windows.out_plane() * LANES);
                let means = lanes_mut(&mut means);
                Frame::tight(windows.out_height, windows.out_width).load(grad, means);
                sums.fill([zero; LANES]);
                windows.for_each(
                    frame.outer_width,
                    #[inline(always)]
                    |out, first| {
                        let grad = scale(means[out], share);
                        for row in sums[first..].chunks_mut(frame.outer_width).take(windows.kernel)
                        {
                            for pixel in &mut row[..windows.kernel] {
                                *pixel = add(*pixel, grad);
                            }
                        }
                    },
                );
                let mut positive = eights(frame);
                let positive = lanes_mut(&mut positive);
                unpack(signs, positive);
                let rows = sums.chunks_exact_mut(frame.outer_width);
                for (row, positive) in rows.zip(positive.chunks_exact(frame.width)) {
                    let row = &mut row[..frame.width];
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

/// A truth value for each pixel of a plane and image, in whole eights of pixels. What it holds is whatever was there.
fn eights(frame: Frame) -> Scratch<bool> {
    Scratch::new(frame.inner().next_multiple_of(8) * LANES)
}

/// A bit for a byte: eight pixels at a time, the first in the lowest bit. `positive` is whole eights.
#[inline(always)]
fn pack(positive: &[Lane<bool>], signs: &mut [Signs]) {
    let (eights, _) = positive.as_chunks::<8>();
    for (signs, eight) in signs.iter_mut().zip(eights) {
        let mut bits = [0; LANES];
        for pixel in eight.iter().rev() {
            for lane in 0..LANES {
                bits[lane] = bits[lane] << 1 | u8::from(pixel[lane]);
            }
        }
        *signs = bits;
    }
}

/// The inverse of [`pack`].
#[inline(always)]
fn unpack(signs: &[Signs], positive: &mut [Lane<bool>]) {
    let (eights, _) = positive.as_chunks_mut::<8>();
    for (signs, eight) in signs.iter().zip(eights) {
        let mut pixels = [[false; LANES]; 8];
        for (place, pixel) in pixels.iter_mut().enumerate() {
            for lane in 0..LANES {
                pixel[lane] = signs[lane] >> place & 1 != 0;
            }
        }
        *eight = pixels;
    }
}
