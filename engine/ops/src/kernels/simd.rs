//! SIMD: blocks of sixteen images, and loops compiled for the processor's widest vectors.
//!
//! A program for every x86-64 processor uses vectors of four 32-bit numbers. Most processors have vectors of eight or sixteen.
//! The compiler vectorises loops over arrays of known length, without branches and without a sum from one element to the
//! next, so a sum has one accumulator for each lane. Wider vectors compute the same bits: nothing is fused or reassociated.
//!
//! Neighbouring pixels are awkward at borders, at odd widths and with strides. The convolutions therefore work on *blocks*,
//! which hold the same pixel of sixteen images next to each other:
//!
//! ```text
//! tensor   image 0: a₀ b₀ c₀ …    image 1: a₁ b₁ c₁ …    …    image 15: a₁₅ b₁₅ c₁₅ …
//! block    a₀ a₁ … a₁₅ │ b₀ b₁ … b₁₅ │ c₀ c₁ … c₁₅ │ …
//! ```
//!
//! One vector instruction processes a pixel of sixteen images, so a loop that reads like the formula is also the fast loop.
//! Zeros fill the missing lanes of a batch's last block. Lanes never mix, so the choice of a block's images changes no result.

use std::ops::Range;

use super::element::Element;

/// Images in a block. A vector of the longest kind, 512 bits, holds this many f32 numbers.
pub(crate) const LANES: usize = 16;

/// A SIMD vector: the same pixel of all images of a block, one image per lane.
pub(crate) type Simd<T> = [T; LANES];

#[inline(always)]
pub(crate) fn add<T: Element>(a: Simd<T>, b: Simd<T>) -> Simd<T> {
    std::array::from_fn(|lane| a[lane] + b[lane])
}

/// sum + a · b in each lane, rounded after the product and again after the sum.
#[inline(always)]
pub(crate) fn add_product<T: Element>(sum: Simd<T>, a: Simd<T>, b: Simd<T>) -> Simd<T> {
    std::array::from_fn(|lane| sum[lane] + a[lane] * b[lane])
}

#[inline(always)]
pub(crate) fn scale<T: Element>(a: Simd<T>, scale: T) -> Simd<T> {
    std::array::from_fn(|lane| a[lane] * scale)
}

/// Views scratch memory as SIMD vectors.
pub(crate) fn vectors<T>(numbers: &[T]) -> &[Simd<T>] {
    let (vectors, rest) = numbers.as_chunks();
    assert!(rest.is_empty(), "vectors are whole");
    vectors
}

/// Views mutable scratch memory as SIMD vectors.
pub(crate) fn vectors_mut<T>(numbers: &mut [T]) -> &mut [Simd<T>] {
    let (vectors, rest) = numbers.as_chunks_mut();
    assert!(rest.is_empty(), "vectors are whole");
    vectors
}

/// Splits a range of images into runs of whole blocks, about `images` long. The last run and its last block may be shorter.
pub(crate) fn runs(all: Range<usize>, images: usize) -> impl Iterator<Item = Range<usize>> {
    let (end, step) = (all.end, images.next_multiple_of(LANES));
    all.step_by(step).map(move |start| start..end.min(start + step))
}

/// Runs `work`, compiled for the widest vectors of this processor. Only inlined code is compiled for these vectors. Mark the
/// functions that `work` calls `#[inline(always)]`, and the closure too, as in `vectorised(#[inline(always)] || …)`. Work
/// for other threads is not compiled for wide vectors, so parallel loops call this function in each task.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
