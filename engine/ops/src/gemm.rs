//! One safe door to the `gemm` crate: the product of two matrices that lie in slices.
//!
//! A product of m×k and k×n matrices costs 2·m·n·k operations, and near the processor's peak from some
//! thousands of results on: that is why so much else is turned into products.
//!
//! This is the only `unsafe` of the operations on the CPU. Everything that could make the call unsound (a slice too
//! short for the shape it is said to have) is checked before it.

use std::ops::Range;

use super::Element;

/// A matrix in a slice: `rows` × `cols` elements, row by row, or column by column if transposed.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// `rows` × `cols` elements stored row by row.
    pub(crate) fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        let needed = rows.checked_mul(cols);
        assert_eq!(Some(data.len()), needed, "a {rows}×{cols} matrix needs its elements");
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// `rows` × `cols` elements; each row begins `row_stride` elements after the one before.
    pub(crate) fn strided(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        let needed = match rows.checked_sub(1) {
            Some(last) => last.checked_mul(row_stride).and_then(|start| start.checked_add(cols)),
            None => Some(0),
        };
        let enough = needed.is_some_and(|needed| data.len() >= needed);
        assert!(enough, "a {rows}×{cols} matrix needs its elements");
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// Some of its columns.
    pub(crate) fn columns(self, columns: Range<usize>) -> Self {
        assert!(columns.end <= self.cols && self.col_stride == 1, "columns of a matrix by rows");
        Self { data: &self.data[columns.start..], cols: columns.len(), ..self }
    }

    /// The same elements read as the transposed matrix.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

/// Whether a product replaces what the destination held or is added to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// `out = a · b`
    Replace,
    /// `out += a · b`
    Accumulate,
}

/// Multiplies `a` (m × k) by `b` (k × n) into `out` (m × n, row by row), in the calling thread.
///
/// The order of the additions depends on the shapes only, so the result has the same bits wherever it
/// runs on one machine.
#[expect(unsafe_code, reason = "gemm's kernels take raw pointers; lengths are checked")]
pub(crate) fn gemm<T: Element>(a: Matrix<'_, T>, b: Matrix<'_, T>, out: &mut [T], store: Store) {
    assert_eq!(a.cols, b.rows, "inner dimensions of a product must agree");
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(Some(out.len()), m.checked_mul(n), "a {m}×{n} product needs its room");
    // `gemm` strides are signed; slices never exceed isize::MAX bytes, so these cannot wrap.
    let signed = |stride: usize| stride as isize;
    let keep = store == Store::Accumulate;
    // SAFETY: `Matrix` is only made of slices that reach to its last element: `new` and `strided` check it,
    // without wrapping; `columns` drops what lies before its first column and moves the last one no further
    // to the right; `transposed` names the same elements. So every element the kernel reads lies in `a.data`
    // or `b.data`. `out` has exactly m·n elements and, being a unique borrow, overlaps neither. `Element` is
    // implemented for f32 and f64 only, which `gemm` takes.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            signed(n),
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    #[should_panic(expected = "needs its elements")]
    fn a_slice_too_short_is_caught() {
        Matrix::new(&[1.0f32; 5], 2, 3);
    }

    #[test]
    #[should_panic(expected = "needs its elements")]
    fn a_size_that_wraps_is_caught() {
        // In 64 bits the product is 0.
        Matrix::new(&[0.0f32; 0], 1 << 32, 1 << 32);
    }

    #[test]
    #[should_panic(expected = "needs its elements")]
    fn a_stride_that_wraps_is_caught() {
        // In 64 bits the last row would begin at 0.
        Matrix::strided(&[0.0f32; 1], (1 << 32) + 1, 1, 1 << 32);
    }
}
