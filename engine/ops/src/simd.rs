//! SIMD: blocks of sixteen images, and loops compiled for the processor's widest vectors.
//!
//! A program compiled for every x86-64 processor can only use vectors of four 32-bit numbers. Most
//! processors today have vectors of eight or sixteen. [`vectorised`] detects the processor's
//! vectors once, and runs a version of the loop that was compiled for them.
//!
//! The compiler vectorises simple loops by itself. A simple loop works on arrays of known length,
//! has no branches, and carries no sum from one element to the next. The order of floating-point
//! additions is part of a program's meaning, and the compiler keeps it. A sum therefore has one
//! accumulator for each lane. Wider vectors compute the same bits, only more of them at a time:
//! nothing is fused or reassociated.
//!
//! # Blocks of sixteen images
//!
//! A tensor holds one image after another. Vectorising over neighbouring pixels is awkward at
//! borders, at odd widths and with strides. The convolutions therefore work on *blocks* of sixteen
//! images. A block holds the same pixel of all sixteen images next to each other:
//!
//! ```text
//! tensor   image 0: a₀ b₀ c₀ …    image 1: a₁ b₁ c₁ …    …    image 15: a₁₅ b₁₅ c₁₅ …
//! block    a₀ a₁ … a₁₅ │ b₀ b₁ … b₁₅ │ c₀ c₁ … c₁₅ │ …
//! ```
//!
//! One vector instruction now processes a pixel of sixteen images, as a scalar instruction
//! processes one pixel. Borders, odd sizes and strides only affect the loop over pixels. A loop
//! that reads like the formula is also the fast loop. Interleaving costs one read and one write of
//! each pixel, and so does the conversion back to images.
//!
//! If the last block of a batch has fewer than sixteen images, zeros fill the missing lanes. Every
//! image has its own lane, and lanes never mix. The choice of the images in a block therefore
//! changes no image's result.

use std::ops::Range;

use super::Element;

/// Images in a block. A vector of the longest kind, 512 bits, holds this many f32 numbers.
pub(crate) const LANES: usize = 16;

/// A SIMD vector: the same pixel of all images of a block, one image per lane.
pub(crate) type Simd<T> = [T; LANES];

/// a + b in each lane.
#[inline(always)]
pub(crate) fn add<T: Element>(a: Simd<T>, b: Simd<T>) -> Simd<T> {
    std::array::from_fn(|lane| a[lane] + b[lane])
}

/// sum + a · b in each lane, rounded after the product and again after the sum.
#[inline(always)]
pub(crate) fn add_product<T: Element>(sum: Simd<T>, a: Simd<T>, b: Simd<T>) -> Simd<T> {
    std::array::from_fn(|lane| sum[lane] + a[lane] * b[lane])
}

/// a · scale in each lane.
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

/// Splits a range of images into blocks. The last block can be shorter.
pub(crate) fn blocks(images: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = images.end;
    images.step_by(LANES).map(move |start| start..end.min(start + LANES))
}

/// Runs `work`, compiled for the widest vectors of this processor.
///
/// Only inlined code is compiled for these vectors. Mark the functions that `work` calls
/// `#[inline(always)]`, and the closure too, as in `vectorised(#[inline(always)] || …)`. A large
/// function without this mark is compiled once, for the baseline processor, and the wide versions
/// call it. Work for other threads is not compiled for wide vectors either. Parallel loops
/// therefore call `vectorised` inside each task.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
