//! Products of small matrices, a tile of results at a time.
//!
//! The sums of a tile stay in registers. The right matrix lies in panels, so that each step reads one line of a panel:
//!
//! ```text
//! left     4 rows, one number each  ─┐
//! right    1 line of 32 columns     ─┴→  4 × 32 sums
//! ```
//!
//! `gemm` copies both matrices before each product and knows no triangles. A product of 64 × 32 × 64 takes less time here.

use std::ops::Range;

use super::element::Element;
use super::gemm::transpose;
use super::memory::Scratch;
use super::simd::{LANES, Simd};

/// Rows of a tile.
pub(crate) const HIGH: usize = 4;
/// Columns of a tile, and of a panel.
pub(crate) const COLUMNS: usize = WIDE * LANES;
const WIDE: usize = 2;

/// The columns of one row of a tile.
pub(crate) type Line<T> = [Simd<T>; WIDE];
/// The sums of a tile.
pub(crate) type Tile<T> = [Line<T>; HIGH];

/// Sums that nothing was added to.
#[inline(always)]
pub(crate) fn no_sums<T: Element>() -> Tile<T> {
    [[[T::zero(); LANES]; WIDE]; HIGH]
}

/// Adds left · right to the sums of a tile: at the steps of `whole` to all rows, then at those of `partly` to the rows that take
/// part. The other rows do not read the numbers of this step, which may be NaN. `left` returns the numbers of all rows at a step.
#[inline(always)]
pub(crate) fn add_products<T: Element>(
    mut sums: Tile<T>,
    left: impl Fn(usize) -> [T; HIGH],
    right: &[Line<T>],
    whole: Range<usize>,
    (partly, takes_part): (Range<usize>, impl Fn(usize, usize) -> bool),
) -> Tile<T> {
    for (step, line) in whole.clone().zip(&right[whole]) {
        // By value, the compiler keeps the line in registers.
        let (left, line) = (left(step), *line);
        for (sums, left) in sums.iter_mut().zip(left) {
            add_row(sums, left, line);
        }
    }
    for (step, line) in partly.clone().zip(&right[partly]) {
        for ((row, sums), left) in sums.iter_mut().enumerate().zip(left(step)) {
            if takes_part(row, step) {
                add_row(sums, left, *line);
            }
        }
    }
    sums
}

#[inline(always)]
fn add_row<T: Element>(sums: &mut Line<T>, left: T, line: Line<T>) {
    for (sum, right) in sums.iter_mut().zip(line) {
        *sum = std::array::from_fn(
            #[inline(always)]
            |lane| left.mul_add(right[lane], sum[lane]),
        );
    }
}

/// Views memory as lines.
pub(crate) fn lines<T>(numbers: &[T]) -> &[Line<T>] {
    numbers.as_chunks().0.as_chunks().0
}

/// Views mutable memory as lines.
pub(crate) fn lines_mut<T>(numbers: &mut [T]) -> &mut [Line<T>] {
    numbers.as_chunks_mut().0.as_chunks_mut().0
}

/// A matrix in panels: the first [`COLUMNS`] columns of all rows, then the next. The last panel ends in arbitrary numbers.
pub(crate) struct Panels<T: Element> {
    numbers: Scratch<T>,
    rows: usize,
}

impl<T: Element> Panels<T> {
    /// Copies the matrix with these numbers of rows and columns. Its rows begin `stride` numbers apart.
    #[inline(always)]
    pub(crate) fn of(matrix: &[T], rows: usize, columns: usize, stride: usize) -> Self {
        let mut numbers = Scratch::new(rows * columns.next_multiple_of(COLUMNS));
        for (row, from) in matrix.chunks(stride).take(rows).enumerate() {
            let (whole, rest) = from[..columns].as_chunks::<COLUMNS>();
            let mut to = numbers.as_chunks_mut::<COLUMNS>().0[row..].iter_mut().step_by(rows);
            to.by_ref().zip(whole).for_each(|(to, from)| *to = *from);
            if let Some(to) = to.next() {
                to[..rest.len()].copy_from_slice(rest);
            }
        }
        Self { numbers, rows }
    }

    /// Copies the transpose of the matrix. Row by row, the numbers come into the near cache faster than in the order of the panels.
    #[inline(never)]
    pub(crate) fn transposed(matrix: &[T], rows: usize, columns: usize, stride: usize) -> Self {
        let mut by_rows = Scratch::new(rows * columns);
        for (to, from) in by_rows.chunks_exact_mut(columns).zip(matrix.chunks(stride)) {
            to.copy_from_slice(&from[..columns]);
        }
        let mut numbers = Scratch::new(columns * rows.next_multiple_of(COLUMNS));
        for (nth, panel) in numbers.chunks_exact_mut(columns * COLUMNS).enumerate() {
            let first = nth * COLUMNS;
            let of_panel = [COLUMNS.min(rows - first), columns, columns];
            transpose(&by_rows[first * columns..], of_panel, panel, COLUMNS);
        }
        Self { numbers, rows: columns }
    }

    /// The lines of one panel, one for each row.
    #[inline(always)]
    pub(crate) fn panel(&self, nth: usize) -> &[Line<T>] {
        &lines(&self.numbers)[nth * self.rows..][..self.rows]
    }
}
