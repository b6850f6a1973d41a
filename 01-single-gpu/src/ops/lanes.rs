//! Sixteen images side by side.
//!
//! A tensor holds image after image, and the neighbours of a pixel lie at awkward distances: at borders,
//! at odd widths, at strides. The convolutions here work on *blocks* instead, of sixteen images each,
//! interleaved so that the same pixel of all sixteen lies together:
//!
//! ```text
//! tensor   image 0: a₀ b₀ c₀ …    image 1: a₁ b₁ c₁ …    …    image 15: a₁₅ b₁₅ c₁₅ …
//! block    a₀ a₁ … a₁₅ │ b₀ b₁ … b₁₅ │ c₀ c₁ … c₁₅ │ …
//! ```
//!
//! Now one vector instruction does to a pixel of sixteen images what a scalar one does to a pixel, and
//! borders, odd sizes and strides are the loop's business alone: a loop over pixels that reads like the
//! formula is also the fast one. It costs one read and one write of each pixel on the way in and out.
//! What is missing in the last block of a batch is filled with zeros. An image's lane never mixes with
//! another's, so which images share a block changes no image's result.

use std::ops::Range;

use super::Element;

/// Images in a block, and numbers in the longest vector (512 bits of f32).
pub(crate) const LANES: usize = 16;

/// The same pixel of all images of a block.
pub(crate) type Lane<T> = [T; LANES];

/// a + b, image by image.
#[inline(always)]
pub(crate) fn add<T: Element>(a: Lane<T>, b: Lane<T>) -> Lane<T> {
    std::array::from_fn(|lane| a[lane] + b[lane])
}

/// sum + a · b, image by image: rounded after the product and after the sum.
#[inline(always)]
pub(crate) fn add_product<T: Element>(sum: Lane<T>, a: Lane<T>, b: Lane<T>) -> Lane<T> {
    std::array::from_fn(|lane| sum[lane] + a[lane] * b[lane])
}

/// a · scale, image by image.
#[inline(always)]
pub(crate) fn scale<T: Element>(a: Lane<T>, scale: T) -> Lane<T> {
    std::array::from_fn(|lane| a[lane] * scale)
}

/// A slice of scratch memory as lanes.
pub(crate) fn lanes<T>(numbers: &[T]) -> &[Lane<T>] {
    let (lanes, rest) = numbers.as_chunks();
    assert!(rest.is_empty(), "lanes are whole");
    lanes
}

/// A slice of scratch memory as lanes, to be written.
pub(crate) fn lanes_mut<T>(numbers: &mut [T]) -> &mut [Lane<T>] {
    let (lanes, rest) = numbers.as_chunks_mut();
    assert!(rest.is_empty(), "lanes are whole");
    lanes
}

/// A run of images, block by block.
pub(crate) fn blocks(images: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = images.end;
    images.step_by(LANES).map(move |start| start..end.min(start + LANES))
}

/// A plane of pixels inside a larger one, with zeros around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Rows of the plane itself.
    pub(crate) height: usize,
    /// Columns of the plane itself.
    pub(crate) width: usize,
    /// Rows and columns of zeros above and to the left of it.
    pub(crate) padding: usize,
    /// Rows of the larger plane.
    pub(crate) outer_height: usize,
    /// Columns of the larger plane.
    pub(crate) outer_width: usize,
}

impl Frame {
    /// No zeros around it.
    pub(crate) fn tight(height: usize, width: usize) -> Self {
        Self { height, width, padding: 0, outer_height: height, outer_width: width }
    }

    /// Pixels of the plane itself.
    pub(crate) fn inner(&self) -> usize {
        self.height * self.width
    }

    /// Pixels of the larger plane.
    pub(crate) fn outer(&self) -> usize {
        self.outer_height * self.outer_width
    }

    /// Interleaves one channel of a block's images into `plane`, all of which is written.
    ///
    /// `images` yields that channel's pixels of each image, [`LANES`] of them or fewer.
    #[inline(always)]
    pub(crate) fn load<'a, T: Element>(
        &self,
        images: impl Iterator<Item = &'a [T]> + Clone,
        plane: &mut [Lane<T>],
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

    /// Takes the images of a block apart again: the inverse of [`load`](Self::load).
    #[inline(always)]
    pub(crate) fn store<T: Element>(&self, plane: &[Lane<T>], images: &mut [&mut [T]]) {
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

/// The planes of a block of images, channel by channel: of each channel one plane an image.
///
/// `images` holds whole images of `channels` planes of `plane` elements.
pub(crate) fn by_channel<T>(images: &mut [T], channels: usize, plane: usize) -> Vec<Vec<&mut [T]>> {
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
                let frame = Frame {
                    height,
                    width,
                    padding,
                    outer_height: height + 2 * padding + extra,
                    outer_width: width + 2 * padding + extra,
                };
                let images: Vec<f32> =
                    (0..count * frame.inner()).map(|pixel| pixel as f32 + 1.0).collect();
                // What lay there before must not matter.
                let mut plane = vec![[f32::NAN; LANES]; frame.outer()];
                frame.load(images.chunks_exact(frame.inner()), &mut plane);
                let sum: f32 = plane.as_flattened().iter().sum();
                assert_eq!(sum, images.iter().sum::<f32>(), "zeros around {frame:?}");
                let mut back = vec![0.0; images.len()];
                let mut planes = by_channel(&mut back, 1, frame.inner()).swap_remove(0);
                frame.store(&plane, &mut planes);
                assert_eq!(back, images, "{frame:?}, {count} images");
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
