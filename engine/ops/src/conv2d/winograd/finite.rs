//! Results that are not finite are computed again, by [`Im2col`](crate::conv2d::im2col::Im2col).
//!
//! In a plain convolution a NaN or an infinity reaches the outputs that read it. Winograd's transforms mix a tile's numbers:
//!
//! | operands | plain | Winograd's |
//! | --- | --- | --- |
//! | a NaN among the pixels | NaN where a kernel sees it | NaN all over its tiles |
//! | an infinity | an infinity | inf − inf = NaN |
//! | finite, but close to the largest number of the type | finite | the transforms overflow |
//!
//! A plane of outputs with a number that is not finite is therefore *spoilt*: it becomes NaN as a whole, which neither the
//! [zero mask](super::zero_mask) nor the relu hides. The same happens to planes of the input's gradient and to kernels of the
//! weight's. After the pass, what is NaN as a whole is replaced. All other planes and kernels keep their bits.
//!
//! The check costs one addition for each result: the total of a plane is finite only if all its numbers are.

use crate::Element;
use crate::kernels::simd::{LANES, Simd, add};

/// Returns which images have a number in their plane that is not finite.
#[inline(always)]
pub(super) fn not_finite<T: Element>(plane: &[Simd<T>]) -> Simd<bool> {
    // Four sums: an addition waits for the previous one to the same sum.
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
    let totals = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
    if totals.into_iter().all(T::is_finite) { [false; LANES] } else { one_by_one(plane) }
}

#[cold]
fn one_by_one<T: Element>(plane: &[Simd<T>]) -> Simd<bool> {
    std::array::from_fn(|lane| plane.iter().any(|pixel| !pixel[lane].is_finite()))
}

/// Overwrites the planes of `images` with NaN. Returns whether there is one.
#[inline(always)]
pub(super) fn spoil<T: Element>(plane: &mut [Simd<T>], images: Simd<bool>) -> bool {
    let any = images.contains(&true);
    if any {
        for pixel in plane {
            *pixel = std::array::from_fn(|lane| if images[lane] { T::nan() } else { pixel[lane] });
        }
    }
    any
}
