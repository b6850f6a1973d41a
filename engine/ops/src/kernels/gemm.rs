//! A safe interface to the `gemm` crate: the product of two matrices in slices.
//!
//! The product of an m×k and a k×n matrix costs 2·m·n·k operations, near the processor's peak from some thousand results on.
//! Beside a function of `memory` this is the only `unsafe` code on the CPU: every condition of a sound call is checked before
//! the call.

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::Element;
use super::memory::made_by_task;

/// A matrix of `rows` × `cols` elements in a slice, row by row, or by columns if it is transposed.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix stored row by row. Panics when `data` does not have exactly `rows` · `cols` elements.
    pub(crate) fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        let needed = rows.checked_mul(cols);
        assert_eq!(Some(data.len()), needed, "a {rows}×{cols} matrix needs its elements");
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// A matrix whose rows begin `row_stride` elements apart. Panics when `data` ends before the last element.
    pub(crate) fn strided(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        let enough = has_room(data.len(), rows, cols, row_stride);
        assert!(enough, "a {rows}×{cols} matrix needs its elements");
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// A range of the rows of a matrix.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && !rows.is_empty(), "rows of a matrix");
        Self { data: &self.data[rows.start * self.row_stride..], rows: rows.len(), ..self }
    }

    /// A range of the matrix's columns.
    pub(crate) fn columns(self, columns: Range<usize>) -> Self {
        assert!(columns.end <= self.cols && self.col_stride == 1, "columns of a matrix by rows");
        Self { data: &self.data[columns.start..], cols: columns.len(), ..self }
    }

    /// The transposed matrix over the same elements.
    pub(crate) fn transposed(self) -> Self {
        let Self { data, rows: cols, cols: rows, row_stride, col_stride } = self;
        Self { data, rows, cols, row_stride: col_stride, col_stride: row_stride }
    }
}

/// Whether `len` elements are enough for a matrix whose rows begin `row_stride` elements apart.
fn has_room(len: usize, rows: usize, cols: usize, row_stride: usize) -> bool {
    let needed = match rows.checked_sub(1) {
        Some(last) => last.checked_mul(row_stride).and_then(|start| start.checked_add(cols)),
        None => Some(0),
    };
    needed.is_some_and(|needed| len >= needed)
}

/// Whether a product replaces the contents of the destination or is added to them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// `out = a · b`
    Replace,
    /// `out += a · b`
    Accumulate,
}

/// Multiplies `a`, m × k, by `b`, k × n, into `out`, m × n and row by row, in the calling thread. The order of the additions,
/// and so the bits on one machine, depend on the shapes only. Panics when the shapes do not match.
#[expect(unsafe_code, reason = "memory of initialised numbers")]
pub(crate) fn gemm<T: Element>(a: Matrix<'_, T>, b: Matrix<'_, T>, out: &mut [T], store: Store) {
    assert_eq!(Some(out.len()), a.rows.checked_mul(b.cols), "a product needs its room");
    // SAFETY: a pointer to the numbers of a unique borrow, which have values.
    unsafe { multiply(a, b, (out.as_mut_ptr(), out.len(), b.cols), store) }
}

/// Does the same for memory without values and a right matrix in [panels](Panels): returns the product in this memory, with the
/// same bits. Also panics when m or k is 0.
#[expect(unsafe_code, reason = "a product writes all of its memory")]
pub(crate) fn product<'out, T: Element>(
    a: Matrix<'_, T>,
    b: &Panels<'_, T>,
    out: &'out mut [MaybeUninit<T>],
) -> &'out mut [T] {
    assert_ne!(a.rows.min(a.cols), 0, "a product of nothing writes nothing");
    assert_eq!(Some(out.len()), a.rows.checked_mul(b.columns), "a product needs its room");
    for (first, panel) in b.panels() {
        for (run, store) in runs(a.cols, b.columns) {
            let out = &mut out[first..];
            let out = (out.as_mut_ptr().cast(), out.len(), b.columns);
            // SAFETY: a pointer to numbers of a unique borrow. The first run writes the numbers that the others add to.
            unsafe { multiply(a.columns(run.clone()), panel.rows(run), out, store) }
        }
    }
    // SAFETY: with k > 0 `gemm` writes all numbers of a product, and the panels have all columns.
    unsafe { out.assume_init_mut() }
}

/// Divides the k terms of each sum into runs. Such runs `gemm` adds up one after the other, in a product of at most 64 rows and
/// this number of columns. With them, a part of the columns has the bits of the whole.
pub(crate) fn runs(k: usize, columns: usize) -> impl Iterator<Item = (Range<usize>, Store)> {
    const LONGEST: usize = 512;
    let run = if columns > 64 { k.div_ceil(k.div_ceil(LONGEST).max(1)) } else { LONGEST };
    (0..k).step_by(run.max(1)).map(move |start| {
        let store = if start == 0 { Store::Replace } else { Store::Accumulate };
        (start..k.min(start + run), store)
    })
}

/// # Safety
///
/// Nothing else uses the memory of `out`: a pointer, the numbers from there on, and the distance from a row to the next. The
/// numbers of the product have values unless `store` is to replace them.
#[expect(unsafe_code, reason = "gemm's kernels take raw pointers; lengths are checked")]
unsafe fn multiply<T: Element>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    (out, len, stride): (*mut T, usize, usize),
    store: Store,
) {
    assert_eq!(a.cols, b.rows, "inner dimensions of a product must agree");
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert!(n <= stride && has_room(len, m, n, stride), "a {m}×{n} product needs its room");
    // `gemm` takes signed strides. A slice has at most isize::MAX bytes.
    let signed = |stride: usize| stride as isize;
    let keep = store == Store::Accumulate;
    // SAFETY: a `Matrix` only holds a slice that reaches to the matrix's last element. `new` and
    // `strided` check this, without wrapping. `columns` and `rows` drop the elements before their
    // first and never move the last one to the right. `transposed` refers to the same elements. The
    // caller has the only pointer to the elements of `out`, which reach to the last of the product.
    // `gemm` supports both types of `Element`.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out,
            1,
            signed(stride),
            keep,
            a.data.as_ptr(),
            signed(a.col_stride),
            signed(a.row_stride),
            b.data.as_ptr(),
            signed(b.col_stride),
            signed(b.row_stride),
            T::one(),
            T::one(),
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// The right matrix of many products, cut into panels: all rows of its first columns, then of the next.
///
/// `gemm` reads some columns at a time, row by row. In a matrix of long rows these numbers are far apart, often by a power of two,
/// and share few places of a cache. In a panel they are neighbours.
pub(crate) struct Panels<'a, T: Clone> {
    numbers: Cow<'a, [T]>,
    rows: usize,
    columns: usize,
    /// The columns of a panel. Zeros fill up the last one.
    width: usize,
}

impl<'a, T: Element> Panels<'a, T> {
    /// A matrix of this number of columns as a single panel.
    pub(crate) fn whole(matrix: &'a [T], columns: usize) -> Self {
        let rows = matrix.len() / columns;
        Self { numbers: Cow::Borrowed(matrix), rows, columns, width: columns }
    }

    /// Copies a matrix of this number of columns.
    pub(crate) fn copied(matrix: &[T], columns: usize) -> Self {
        Self::made(matrix.len() / columns, columns, |of_panel, panel, width| {
            for (to, row) in panel.chunks_exact_mut(width).zip(matrix.chunks(columns)) {
                to[..of_panel.len()].copy_from_slice(&row[of_panel.clone()]);
            }
        })
    }

    /// Copies the transpose of a matrix of this number of columns.
    pub(crate) fn transposed(matrix: &[T], columns: usize) -> Self {
        Self::made(columns, matrix.len() / columns, |of_panel, panel, width| {
            let rows = &matrix[of_panel.start * columns..];
            transpose(rows, [of_panel.len(), columns, columns], panel, width);
        })
    }

    /// `make` overwrites the zeros of the panel of these columns, with rows of this width.
    fn made(
        rows: usize,
        columns: usize,
        make: impl Fn(Range<usize>, &mut [T], usize) + Sync + Send,
    ) -> Self {
        // A panel is as wide as `gemm`'s largest tile, or wider: otherwise the calls for few rows would take long.
        let width = if rows < 256 { 256 } else { 64 };
        let make = |nth: usize, panel: &mut [T]| {
            make(nth * width..columns.min((nth + 1) * width), panel, width);
        };
        let len = rows * columns.next_multiple_of(width);
        let numbers = Cow::Owned(made_by_task(len, rows * width, make).0);
        Self { numbers, rows, columns, width }
    }

    /// The numbers of rows and columns.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// The first column of each panel, and the panel.
    fn panels(&self) -> impl Iterator<Item = (usize, Matrix<'_, T>)> {
        let Self { ref numbers, rows, columns, width } = *self;
        let panels = numbers.chunks_exact(rows * width).zip((0..).step_by(width));
        panels.map(move |(panel, first)| {
            (first, Matrix::strided(panel, rows, width.min(columns - first), width))
        })
    }
}

/// Copies the transpose of a matrix of `rows` × `columns` numbers into rows that begin `to_stride` numbers apart. The rows of the
/// matrix begin `stride` apart. The compiler keeps a block of 4 × 4 numbers in registers.
pub(crate) fn transpose<T: Copy>(
    matrix: &[T],
    [rows, columns, stride]: [usize; 3],
    to: &mut [T],
    to_stride: usize,
) {
    const BLOCK: usize = 4;
    for first in (0..rows).step_by(BLOCK) {
        let row = |nth: usize| &matrix[(first + nth) * stride..][..columns];
        let is_whole = first + BLOCK <= rows;
        if is_whole {
            let rows: [_; BLOCK] = std::array::from_fn(|nth| row(nth).as_chunks::<BLOCK>().0);
            for at in 0..columns / BLOCK {
                let block = rows.map(|row| row[at]);
                for nth in 0..BLOCK {
                    let to = &mut to[(at * BLOCK + nth) * to_stride + first..][..BLOCK];
                    to.copy_from_slice(&block.map(|numbers| numbers[nth]));
                }
            }
        }
        let rest = if is_whole { columns / BLOCK * BLOCK } else { 0 };
        for nth in 0..BLOCK.min(rows - first) {
            for (at, &number) in row(nth).iter().enumerate().skip(rest) {
                to[at * to_stride + first + nth] = number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::memory::written_by_task;

    #[test]
    fn products_of_all_orientations() {
        let a = [1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0];
        let b = [1.0f64, 0.0, -1.0, 2.0, 1.0, 1.0];
        let mut out = [0.0; 4];
        gemm(Matrix::new(&a, 2, 3), Matrix::new(&b, 3, 2), &mut out, Store::Replace);
        assert_eq!(out, [2.0, 7.0, 5.0, 16.0]);
        gemm(
            Matrix::new(&a, 3, 2).transposed(),
            Matrix::new(&b, 2, 3).transposed(),
            &mut out,
            Store::Accumulate,
        );
        assert_eq!(
            out,
            [2.0 + 1.0 - 5.0, 7.0 + 2.0 + 3.0 + 5.0, 5.0 + 2.0 - 6.0, 16.0 + 4.0 + 4.0 + 6.0]
        );
    }

    /// The sizes are smaller than a panel, several panels and a rest, and several runs.
    #[test]
    fn a_product_of_panels_has_the_bits_of_a_product_of_the_whole() {
        for (m, k, n) in [(1, 3, 5), (49, 1000, 10), (48, 70, 64), (7, 1100, 130), (50, 33, 300)] {
            let [a, b] = [m * k, k * n]
                .map(|len| -> Vec<f32> { (0..len).map(|at| (at as f32 * 0.7).sin()).collect() });
            let mut expected = vec![0.0; m * n];
            gemm(Matrix::new(&a, m, k), Matrix::new(&b, k, n), &mut expected, Store::Replace);
            let turned: Vec<f32> = (0..k * n).map(|at| b[at % k * n + at / k]).collect();
            for panels in
                [Panels::whole(&b, n), Panels::copied(&b, n), Panels::transposed(&turned, k)]
            {
                assert_eq!(panels.size(), (k, n));
                let (found, _) = written_by_task(m * n, m * n, false, |_, memory| {
                    (product(Matrix::new(&a, m, k), &panels, memory), ())
                });
                assert!(found == expected, "{m} × {k} × {n} in panels of {}", panels.width);
            }
        }
    }

    #[test]
    fn elements_that_a_slice_lacks_are_caught() {
        const FEW: &[f32] = &[0.0; 5];
        let panics = |matrix: &dyn Fn() -> Matrix<'static, f32>| {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(matrix)).err();
            let message = panic.expect("a panic").downcast::<String>().unwrap();
            assert!(message.contains("needs its elements"), "{message}");
        };
        panics(&|| Matrix::new(FEW, 2, 3));
        // In 64 bits the product is 0.
        panics(&|| Matrix::new(&[], 1 << 32, 1 << 32));
        // In 64 bits the last row would begin at 0.
        panics(&|| Matrix::strided(FEW, (1 << 32) + 1, 1, 1 << 32));
    }
}
