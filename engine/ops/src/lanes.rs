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
