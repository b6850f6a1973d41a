//! Padded planes, and their conversion to and from blocks of sixteen images ([`simd`](crate::kernels::simd)).

use std::ops::Range;

use rayon::prelude::*;

use super::geometry::Geometry;
use crate::Element;
use crate::kernels::memory::Scratch;
use crate::kernels::simd::{LANES, Simd, vectorised, vectors_mut};

/// A padded plane: a plane of pixels inside a larger plane of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PaddedPlane {
    /// Rows of the plane without padding.
    pub(super) height: usize,
    /// Columns of the plane without padding.
    pub(super) width: usize,
    /// Rows of zeros above the plane, and columns of zeros to its left.
    pub(super) padding: usize,
    /// Rows of the padded plane.
    pub(super) outer_height: usize,
    /// Columns of the padded plane.
    pub(super) outer_width: usize,
}

impl PaddedPlane {
    pub(super) fn unpadded(height: usize, width: usize) -> Self {
        Self { height, width, padding: 0, outer_height: height, outer_width: width }
    }

    /// Pixels of the plane without padding.
    pub(super) fn inner(&self) -> usize {
        self.height * self.width
    }

    /// Pixels of the padded plane.
    pub(super) fn outer(&self) -> usize {
        self.outer_height * self.outer_width
    }

    /// Interleaves one channel's pixels of at most [`LANES`] images, and writes all of `plane`,
    /// including the zeros. The lanes of missing images are zero.
    #[inline(always)]
    pub(super) fn load<'a, T: Element>(
        &self,
        images: impl Iterator<Item = &'a [T]> + Clone,
        plane: &mut [Simd<T>],
    ) {
        let zero = [T::zero(); LANES];
        let present = images.clone().count();
        for (row, plane) in plane.chunks_exact_mut(self.outer_width).enumerate() {
            let row = match row.checked_sub(self.padding) {
                Some(row) if row < self.height => row,
                _ => {
                    plane.fill(zero);
                    continue;
                }
            };
            let (left, rest) = plane.split_at_mut(self.padding);
            let (inside, right) = rest.split_at_mut(self.width);
            left.fill(zero);
            right.fill(zero);
            if present < LANES {
                inside.fill(zero);
            }
            for (lane, image) in images.clone().enumerate() {
                for (to, &pixel) in inside.iter_mut().zip(&image[row * self.width..]) {
                    to[lane] = pixel;
                }
            }
        }
    }

    /// Copies the planes of a block back to their images: the inverse of [`load`](Self::load).
    #[inline(always)]
    pub(super) fn store<T: Element>(&self, plane: &[Simd<T>], images: &mut [&mut [T]]) {
        let rows = plane.chunks_exact(self.outer_width).skip(self.padding).take(self.height);
        for (row, plane) in rows.enumerate() {
            let inside = &plane[self.padding..][..self.width];
            for (lane, image) in images.iter_mut().enumerate() {
                for (pixel, from) in image[row * self.width..].iter_mut().zip(inside) {
                    *pixel = from[lane];
                }
            }
        }
    }
}

impl Geometry {
    pub(super) fn padded(&self) -> PaddedPlane {
        PaddedPlane {
            height: self.height,
            width: self.width,
            padding: self.padding,
            outer_height: self.height + 2 * self.padding,
            outer_width: self.width + 2 * self.padding,
        }
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

/// Groups the planes of a block of images by channel. An image has `channels` planes of `plane`
/// elements. The result has one plane per image for each channel.
pub(super) fn by_channel<T>(images: &mut [T], channels: usize, plane: usize) -> Vec<Vec<&mut [T]>> {
    let mut grouped: Vec<Vec<&mut [T]>> =
        (0..channels).map(|_| Vec::with_capacity(LANES)).collect();
    for (index, plane) in images.chunks_exact_mut(plane).enumerate() {
        grouped[index % channels].push(plane);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_apart_as_it_went_in() {
        for (height, width, padding, extra) in
            [(3, 5, 0, 0), (4, 3, 1, 0), (5, 5, 2, 3), (1, 1, 0, 0)]
        {
            for count in [1, 5, LANES] {
                let padded = PaddedPlane {
                    height,
                    width,
                    padding,
                    outer_height: height + 2 * padding + extra,
                    outer_width: width + 2 * padding + extra,
                };
                let images: Vec<f32> =
                    (0..count * padded.inner()).map(|pixel| pixel as f32 + 1.0).collect();
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
