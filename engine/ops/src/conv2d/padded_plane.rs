//! Padded planes, and their conversion to and from blocks of sixteen images ([`simd`](crate::kernels::simd)).

use std::ops::Range;

use rayon::prelude::*;

use super::geometry::Geometry;
use crate::Element;
use crate::kernels::memory::Scratch;
use crate::kernels::simd::{LANES, Simd, vectorised, vectors_mut};

/// A padded plane: an image's plane of pixels, or every `step`-th row and column of it, inside a larger plane of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PaddedPlane {
    /// Rows of the image's plane.
    pub(super) height: usize,
    /// Columns of the image's plane.
    pub(super) width: usize,
    pub(super) step: usize,
    /// Rows of zeros above the plane, and columns of zeros to its left.
    pub(super) padding: usize,
    /// Rows of the padded plane.
    pub(super) outer_height: usize,
    /// Columns of the padded plane.
    pub(super) outer_width: usize,
}

impl PaddedPlane {
    pub(super) fn unpadded(height: usize, width: usize) -> Self {
        Self { height, width, step: 1, padding: 0, outer_height: height, outer_width: width }
    }

    /// Pixels of the image's plane.
    pub(super) fn inner(&self) -> usize {
        self.height * self.width
    }

    /// Pixels of the padded plane.
    pub(super) fn outer(&self) -> usize {
        self.outer_height * self.outer_width
    }

    /// The rows and columns of the image's plane that are loaded.
    fn loaded(&self) -> (usize, usize) {
        (self.height.div_ceil(self.step), self.width.div_ceil(self.step))
    }

    /// Interleaves one channel's pixels of at most [`LANES`] images, and writes all of `plane`. Missing images are zero.
    #[inline(always)]
    pub(super) fn load<'a, T: Element>(
        &self,
        images: impl Iterator<Item = &'a [T]> + Clone,
        plane: &mut [Simd<T>],
    ) {
        let zero = [T::zero(); LANES];
        let present = images.clone().count();
        let (height, width) = self.loaded();
        for (row, plane) in plane.chunks_exact_mut(self.outer_width).enumerate() {
            let row = match row.checked_sub(self.padding) {
                Some(row) if row < height => row,
                _ => {
                    plane.fill(zero);
                    continue;
                }
            };
            let (left, rest) = plane.split_at_mut(self.padding);
            let (inside, right) = rest.split_at_mut(width);
            left.fill(zero);
            right.fill(zero);
            if present < LANES {
                inside.fill(zero);
            }
            for (lane, image) in images.clone().enumerate() {
                let row = &image[row * self.step * self.width..];
                if self.step == 1 {
                    inside.iter_mut().zip(row).for_each(|(to, &pixel)| to[lane] = pixel);
                } else {
                    let pixels = row.iter().step_by(self.step);
                    inside.iter_mut().zip(pixels).for_each(|(to, &pixel)| to[lane] = pixel);
                }
            }
        }
    }

    /// Copies the planes of a block back to the pixels that [`load`](Self::load) reads.
    #[inline(always)]
    pub(super) fn store<T: Element>(&self, plane: &[Simd<T>], images: &mut [&mut [T]]) {
        let (height, width) = self.loaded();
        let rows = plane.chunks_exact(self.outer_width).skip(self.padding).take(height);
        for (row, plane) in rows.enumerate() {
            let inside = &plane[self.padding..][..width];
            for (lane, image) in images.iter_mut().enumerate() {
                let row = &mut image[row * self.step * self.width..];
                if self.step == 1 {
                    row.iter_mut().zip(inside).for_each(|(pixel, from)| *pixel = from[lane]);
                } else {
                    let pixels = row.iter_mut().step_by(self.step);
                    pixels.zip(inside).for_each(|(pixel, from)| *pixel = from[lane]);
                }
            }
        }
    }

    /// Sets the pixels of a plane in the upper left to zero, except those that are `kept`, which has the plane's size.
    #[inline(always)]
    pub(super) fn keep<T: Element>(&self, plane: &mut [Simd<T>], kept: &[Simd<bool>]) {
        let rows = plane.chunks_exact_mut(self.outer_width);
        for (row, kept) in rows.zip(kept.chunks_exact(self.width)) {
            for (value, &kept) in row.as_flattened_mut().iter_mut().zip(kept.as_flattened()) {
                *value = if kept { *value } else { T::zero() };
            }
        }
    }
}

impl Geometry {
    /// The plane of an input channel. A strided 1×1 kernel reads only one pixel in stride², and no other pixel is loaded.
    pub(super) fn padded(&self) -> PaddedPlane {
        let Self { height, width, padding, .. } = *self;
        let step =
            if (self.kernel_h, self.kernel_w, padding) == (1, 1, 0) { self.stride } else { 1 };
        let outer = |size: usize| size.div_ceil(step) + 2 * padding;
        let (outer_height, outer_width) = (outer(height), outer(width));
        PaddedPlane { height, width, step, padding, outer_height, outer_width }
    }

    /// The stride between the patches of neighbouring outputs in the padded plane.
    pub(super) fn plane_stride(&self) -> usize {
        self.stride / self.padded().step
    }

    /// Numbers in a block: the padded planes of all channels, for sixteen images.
    pub(super) fn block(&self) -> usize {
        self.in_channels * self.padded().outer() * LANES
    }

    /// Loads a range of images of the batch `x`, block by block, and each block channel by channel.
    pub(super) fn load<T: Element>(&self, x: &[T], images: Range<usize>) -> Scratch<T> {
        let padded = self.padded();
        let mut planes = Scratch::new(images.len().div_ceil(LANES) * self.block());
        let x = &x[images.start * self.image()..images.end * self.image()];
        let planes_of_images = planes.par_chunks_mut(padded.outer() * LANES).enumerate();
        planes_of_images.for_each(|(nth, plane)| {
            let (block, channel) = (nth / self.in_channels, nth % self.in_channels);
            let images = x.chunks_exact(self.image()).skip(block * LANES).take(LANES);
            let of_channel =
                images.map(|image| &image[channel * padded.inner()..][..padded.inner()]);
            vectorised(
                #[inline(always)]
                || padded.load(of_channel, vectors_mut(plane)),
            );
        });
        planes
    }
}

/// Groups the `channels` planes of images, of `plane` elements each, by block and channel.
pub(super) fn by_channel<T>(images: &mut [T], channels: usize, plane: usize) -> Vec<Vec<&mut [T]>> {
    let blocks = images.len().div_ceil(LANES * channels * plane);
    let mut grouped: Vec<Vec<&mut [T]>> =
        (0..blocks * channels).map(|_| Vec::with_capacity(LANES)).collect();
    for (index, plane) in images.chunks_exact_mut(plane).enumerate() {
        grouped[index / channels / LANES * channels + index % channels].push(plane);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_apart_as_it_went_in() {
        for (height, width, step, padding, extra) in [
            (3, 5, 1, 0, 0),
            (4, 3, 1, 1, 0),
            (5, 5, 1, 2, 3),
            (1, 1, 1, 0, 0),
            (3, 5, 2, 0, 0),
            (7, 4, 3, 0, 0),
        ] {
            for count in [1, 5, LANES] {
                let outer = |size: usize| size.div_ceil(step) + 2 * padding + extra;
                let (outer_height, outer_width) = (outer(height), outer(width));
                let padded =
                    PaddedPlane { height, width, step, padding, outer_height, outer_width };
                // The pixels that are not loaded are zero.
                let image = |pixel: usize| {
                    let (row, column) = (pixel / width % height, pixel % width);
                    let loaded = row % step == 0 && column % step == 0;
                    if loaded { pixel as f32 + 1.0 } else { 0.0 }
                };
                let images: Vec<f32> = (0..count * padded.inner()).map(image).collect();
                // `load` must overwrite all earlier contents.
                let mut plane = vec![[f32::NAN; LANES]; padded.outer()];
                padded.load(images.chunks_exact(padded.inner()), &mut plane);
                let sum: f32 = plane.as_flattened().iter().sum();
                assert_eq!(sum, images.iter().sum::<f32>(), "zeros around {padded:?}");
                let mut back = vec![0.0; images.len()];
                let mut planes = by_channel(&mut back, 1, padded.inner()).swap_remove(0);
                padded.store(&plane, &mut planes);
                assert_eq!(back, images, "{padded:?}, {count} images");
            }
        }
    }

    #[test]
    fn planes_are_grouped_by_channel() {
        let mut images = [0, 1, 2, 10, 11, 12];
        let planes = by_channel(&mut images, 3, 1);
        assert_eq!(planes, [[[0], [10]], [[1], [11]], [[2], [12]]]);
    }
}
