//! Winograd's convolution: fewer multiplications for kernels that move one pixel at a time.
//!
//! Neighbouring outputs look at nearly the same inputs, and a plain convolution multiplies each of them
//! anew. Here an image is cut into overlapping tiles of A × A inputs, one for each M × M outputs
//! (A = M + R − 1 for an R × R kernel). Tiles and kernels are *transformed*, a few additions each, so that
//! the convolution of a tile becomes A² multiplications instead of M² · R²:
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
//! | kernel | tile | multiplications an output | of a plain convolution's |
//! | --- | --- | --- | --- |
//! | 3 × 3 | 6 × 6 → 4 × 4 | 36/16 = 2.25 | 9: a quarter |
//! | 3 × 3 | 4 × 4 → 2 × 2 | 16/4 = 4 | 9: less than a half |
//! | 5 × 5 | 7 × 7 → 3 × 3 | 49/9 = 5.4 | 25: a fifth |
//!
//! The price is the transforms, some 2·A³ additions and multiplications for each tile and *channel*,
//! while products are saved for each *pair* of channels: it pays from a handful of channels on. And
//! rounding: sums of numbers that cancel lose digits that a plain convolution keeps. The error grows
//! with the entries of the matrices in [`points`], not with the network; the test below holds it to a bound
//! that is derived from them. Only where all inputs are zero is there no error: see `blank`. Results that are not finite
//! are computed again without transforms: see `finite`.
//!
//! The gradients walk the same road backwards, every matrix transposed. All steps, with T columns (tiles of
//! all images at hand, sixteen images a lane) and A² places:
//!
//! | step | | lies as | tasks |
//! | --- | --- | --- | --- |
//! | weights | U = G·w·Gᵀ | \[O, places, C\] | output channels |
//! | tiles | V = Bᵀ·d·B | \[C, places, T\] | input channels |
//! | products | P = U·V at each place | \[places, O, T\] | places |
//! | outputs | y = Aᵀ·P·A | images | output channels |
//! | gradients | dP = A·dy·Aᵀ | \[O, places, T\] | output channels |
//! | weights | dU = Σ dP·Vᵀ at each place, dw = Gᵀ·dU·G | \[places, O, C\] | places, output channels |
//! | tiles | dV = Uᵀ·dP at each place, dx = B·dV·Bᵀ, added up where tiles overlap | \[places, C, T\] | places, input channels |
//!
//! A task writes one run of memory and reads where it likes: that decides who comes first in each layout.
//! As many images are worked on together as make products wide enough and no more, so that tiles and
//! products are still in a near cache when the next step reads them.

mod backward;
mod blank;
mod finite;
mod forward;
mod points;
#[cfg(test)]
mod rounding;
mod tile;
mod weights;

use super::frame::Frame;
use super::geometry::Geometry;
use crate::gemm::Matrix;
use crate::lanes::LANES;

/// Columns that a product of one place should have at least: fewer would not keep the processor busy.
const COLUMNS: usize = 128;

/// A convolution with tiles of `A` × `A` inputs and `M` × `M` outputs, and kernels of `R` × `R`.
pub(super) struct Winograd<'a, const M: usize, const R: usize, const A: usize> {
    geometry: &'a Geometry,
    /// Rows of tiles.
    down: usize,
    /// Columns of tiles.
    across: usize,
}

impl<'a, const M: usize, const R: usize, const A: usize> Winograd<'a, M, R, A> {
    const INPUTS: [[f64; A]; A] = points::inputs();
    const INPUTS_BACK: [[f64; A]; A] = points::transposed(Self::INPUTS);
    const WEIGHTS: [[f64; R]; A] = points::weights();
    const WEIGHTS_BACK: [[f64; A]; R] = points::transposed(Self::WEIGHTS);
    const OUTPUTS: [[f64; A]; M] = points::outputs();
    const OUTPUTS_BACK: [[f64; M]; A] = points::transposed(Self::OUTPUTS);
    /// Places of a tile.
    pub(super) const PLACES: usize = A * A;

    pub(super) fn new(geometry: &'a Geometry) -> Self {
        let (down, across) = (geometry.out_h.div_ceil(M), geometry.out_w.div_ceil(M));
        Self { geometry, down, across }
    }

    /// Tiles of a plane.
    pub(super) fn tiles(&self) -> usize {
        self.down * self.across
    }

    /// An input plane, wide enough for all tiles.
    fn input_frame(&self) -> Frame {
        let Geometry { height, width, padding, .. } = *self.geometry;
        let outer = |tiles| tiles * M + R - 1;
        let (outer_height, outer_width) = (outer(self.down), outer(self.across));
        Frame { height, width, padding, outer_height, outer_width }
    }

    /// An output plane, rounded up to whole tiles.
    fn output_frame(&self) -> Frame {
        let (height, width) = (self.geometry.out_h, self.geometry.out_w);
        let (outer_height, outer_width) = (self.down * M, self.across * M);
        Frame { height, width, padding: 0, outer_height, outer_width }
    }

    /// Images that are worked on together.
    fn images_at_once(&self) -> usize {
        COLUMNS.div_ceil(self.tiles() * LANES) * LANES
    }

    /// The first pixel of every tile in a plane of a frame: tiles begin `M` pixels apart.
    fn origins(&self, frame: Frame) -> impl Iterator<Item = usize> {
        let across = self.across;
        (0..self.tiles()).map(move |tile| (tile / across * frame.outer_width + tile % across) * M)
    }

    /// The matrix of one place, in numbers that lie row by row: `[rows, places, columns]`.
    fn place_of_rows<T>(numbers: &[T], rows: usize, columns: usize, place: usize) -> Matrix<'_, T> {
        Matrix::strided(&numbers[place * columns..], rows, columns, Self::PLACES * columns)
    }
}
