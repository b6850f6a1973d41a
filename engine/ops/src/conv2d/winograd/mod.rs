//! Winograd's convolution: fewer multiplications for kernels at stride 1.
//!
//! Neighbouring outputs read nearly the same inputs, and a plain convolution multiplies each input anew for each output.
//! Here an image is cut into overlapping tiles of A × A inputs, one tile for each M × M outputs (A = M + R − 1 for an R × R
//! kernel). Tiles and kernels are *transformed* with a few additions each. The convolution of a tile then takes A²
//! multiplications instead of M² · R²:
//!
//! ```text
//!   inputs, M = 4, R = 3           products, for each of A² places        outputs
//!   ┌────────┬─┬─────┐
//!   │ tile 0 │ │     │    Bᵀ·B    ┌─────────┐   ┌─────────┐    Aᵀ·A    ┌──────┬──────┐
//!   │  6×6   │ │tile1│   ──────►  │ weights │ · │ tiles   │  ───────►  │ 4×4  │ 4×4  │
//!   │        │ │     │            │  O × C  │   │  C × T  │            │      │      │
//!   └────────┴─┴─────┘            └─────────┘   └─────────┘            └──────┴──────┘
//!             └┴ read by both       a matrix product: the sum over input channels
//! ```
//!
//! An output takes 36/16 or 16/4 multiplications in place of 9, or 49/9 in place of 25.
//!
//! The first cost is the transforms: some 2·A³ additions and multiplications for each tile and *channel*. The products are
//! saved for each *pair* of channels, so the algorithm pays from a handful of channels on. The second cost is rounding: sums
//! of numbers that cancel lose digits, more with larger entries of the matrices in [`points`]. Outputs of zeros have no error
//! ([`zero_mask`]). Results that are not finite are computed again without transforms ([`finite`]).
//!
//! The gradients take the same steps backwards, with every matrix transposed. A place is one of the A² positions in a tile. T
//! is the number of columns: tiles of all images at hand, sixteen images per SIMD vector.
//!
//! | step | formula | layout | tasks |
//! | --- | --- | --- | --- |
//! | weights | U = G·w·Gᵀ | \[O, places, C\] | output channels |
//! | tiles | V = Bᵀ·d·B | \[C, places, T\] | input channels |
//! | products | P = U·V per place | \[places, O, T\] | places |
//! | outputs | y = Aᵀ·P·A | images | output channels |
//! | gradients | dP = A·dy·Aᵀ | \[O, places, T\] | output channels |
//! | weights | dU = Σ dP·Vᵀ per place, dw = Gᵀ·dU·G | \[places, O, C\] | places, output channels |
//! | tiles | dV = Uᵀ·dP per place, dx = Σ B·dV·Bᵀ | \[places, C, T\] | places, input channels |
//!
//! The last sum adds the tiles where they overlap. A task writes one run of memory, so the tasks decide the first axis of each
//! layout. So few images are computed together that tiles and products stay in a near cache until the next step reads them.

mod finite;
mod passes;
mod points;
#[cfg(test)]
mod tests {
    mod rounding;
}
mod transforms;
mod zero_mask;

use std::ops::Range;

use candle_core::WithDType;

use super::geometry::Geometry;
use super::padded_plane::PaddedPlane;
use crate::Element;
use crate::kernels::gemm::Matrix;
use crate::kernels::simd::{LANES, Simd, add_product};

/// The least number of columns for a product of one place: fewer would not keep the processor busy.
const COLUMNS: usize = 128;

/// A convolution with tiles of `A` × `A` inputs and `M` × `M` outputs, and kernels of `R` × `R`.
pub(super) struct Winograd<'a, const M: usize, const R: usize, const A: usize> {
    geometry: &'a Geometry,
    down: usize,
    across: usize,
}

impl<'a, const M: usize, const R: usize, const A: usize> Winograd<'a, M, R, A> {
    const INPUTS: [[f64; A]; A] = points::inputs();
    const INPUTS_BACK: [[f64; A]; A] = points::transposed(Self::INPUTS);
    const WEIGHTS: [[f64; R]; A] = points::weights();
    const WEIGHTS_BACK: [[f64; A]; R] = points::transposed(Self::WEIGHTS);
    const OUTPUTS: [[f64; A]; M] = points::outputs();
    const OUTPUTS_BACK: [[f64; M]; A] = points::transposed(Self::OUTPUTS);
    pub(super) const PLACES: usize = A * A;
    /// The most columns that one product adds up for the gradient of the weights. The transforms of
    /// 5×5 kernels magnify the rounding errors of long sums in f32. Nine tiles, as in LeNet, of
    /// sixteen images are one sum.
    const SUMMED: usize = if R == 5 { 9 * LANES } else { usize::MAX };

    pub(super) fn new(geometry: &'a Geometry) -> Self {
        let (down, across) = (geometry.out_h.div_ceil(M), geometry.out_w.div_ceil(M));
        Self { geometry, down, across }
    }

    pub(super) fn tiles(&self) -> usize {
        self.down * self.across
    }

    /// The padded plane of an input, wide enough for all tiles.
    fn padded_input(&self) -> PaddedPlane {
        let Geometry { height, width, padding, .. } = *self.geometry;
        let outer = |tiles| tiles * M + R - 1;
        let (outer_height, outer_width) = (outer(self.down), outer(self.across));
        PaddedPlane { height, width, step: 1, padding, outer_height, outer_width }
    }

    /// The padded plane of an output, rounded up to whole tiles.
    fn padded_output(&self) -> PaddedPlane {
        let (height, width) = (self.geometry.out_h, self.geometry.out_w);
        let (outer_height, outer_width) = (self.down * M, self.across * M);
        PaddedPlane { outer_height, outer_width, ..PaddedPlane::unpadded(height, width) }
    }

    /// The number of images that are computed together.
    fn images_at_once(&self) -> usize {
        COLUMNS.div_ceil(self.tiles() * LANES) * LANES
    }

    /// The number of columns of a run of images: a column for each tile and image, with the last block filled up.
    fn columns(&self, images: &Range<usize>) -> usize {
        images.len().next_multiple_of(LANES) * self.tiles()
    }

    /// Returns the first pixel of every tile in a padded plane: tiles begin `M` pixels apart.
    fn origins(&self, padded: PaddedPlane) -> impl Iterator<Item = usize> {
        let across = self.across;
        (0..self.tiles()).map(move |tile| (tile / across * padded.outer_width + tile % across) * M)
    }

    /// Returns the matrix of one place from numbers that lie row by row: `[rows, places, columns]`.
    fn place_of_rows<T>(numbers: &[T], rows: usize, columns: usize, place: usize) -> Matrix<'_, T> {
        Matrix::strided(&numbers[place * columns..], rows, columns, Self::PLACES * columns)
    }
}

/// Computes `matrix` · d · `matrix`ᵀ of a tile d, [I, I] → [O, O], for sixteen images at once.
///
/// The function first multiplies every column of d, and then every row of the intermediate result.
/// The matrices are constants with many zeros, and zeros cost nothing.
#[inline(always)]
fn sandwich<T: Element, const I: usize, const O: usize>(
    matrix: &[[f64; I]; O],
    read: impl Fn(usize, usize) -> Simd<T>,
    mut write: impl FnMut(usize, usize, &Simd<T>),
) {
    let mut half = [[[T::zero(); LANES]; I]; O];
    for column in 0..I {
        let product = multiply(matrix, &std::array::from_fn(|row| read(row, column)));
        for (half, product) in half.iter_mut().zip(&product) {
            half[column] = *product;
        }
    }
    for (row, half) in half.iter().enumerate() {
        let product = multiply(matrix, half);
        for (column, product) in product.iter().enumerate() {
            write(row, column, product);
        }
    }
}

#[inline(always)]
fn multiply<T: Element, const I: usize, const O: usize>(
    matrix: &[[f64; I]; O],
    vector: &[Simd<T>; I],
) -> [Simd<T>; O] {
    let mut product = [[T::zero(); LANES]; O];
    for (product, row) in product.iter_mut().zip(matrix) {
        for (input, &entry) in vector.iter().zip(row) {
            if entry != 0.0 {
                let entry = <T as WithDType>::from_f64(entry);
                *product = add_product(*product, *input, [entry; LANES]);
            }
        }
    }
    product
}
