//! A safe interface to the `gemm` crate: the product of two matrices in slices.
//!
//! The product of an m×k and a k×n matrix costs 2·m·n·k operations, near the processor's peak from some thousand results on.
//! Beside a function of `memory` this is the only `unsafe` code on the CPU: every condition of a sound call is checked before
//! the call.

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
        let needed = match rows.checked_sub(1) {
            Some(last) => last.checked_mul(row_stride).and_then(|start| start.checked_add(cols)),
            None => Some(0),
        };
        let enough = needed.is_some_and(|needed| data.len() >= needed);
        assert!(enough, "a {rows}×{cols} matrix needs its elements");
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// The numbers of rows and columns.
    pub(crate) fn size(self) -> (usize, usize) {
        (self.rows, self.cols)
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
    // SAFETY: a pointer to the numbers of a unique borrow, which have values.
    unsafe { multiply(a, b, (out.as_mut_ptr(), out.len()), store) }
}

/// Does the same for memory without values: returns the product in this memory. Also panics when k is 0.
#[expect(unsafe_code, reason = "a product writes all of its memory")]
pub(crate) fn product<'out, T: Element>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    out: &'out mut [MaybeUninit<T>],
) -> &'out mut [T] {
    assert_ne!(a.cols, 0, "a product of nothing writes nothing");
    // SAFETY: a pointer to the numbers of a unique borrow. `gemm` reads no number before it has written it, and with k > 0
    // writes all of them.
    unsafe {
        multiply(a, b, (out.as_mut_ptr().cast(), out.len()), Store::Replace);
        out.assume_init_mut()
    }
}

/// # Safety
///
/// Nothing else uses the memory of `out`, a pointer and its numbers. They have values unless `store` is to replace them.
#[expect(unsafe_code, reason = "gemm's kernels take raw pointers; lengths are checked")]
unsafe fn multiply<T: Element>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    (out, len): (*mut T, usize),
    store: Store,
) {
    assert_eq!(a.cols, b.rows, "inner dimensions of a product must agree");
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(Some(len), m.checked_mul(n), "a {m}×{n} product needs its room");
    // `gemm` takes signed strides. A slice has at most isize::MAX bytes.
    let signed = |stride: usize| stride as isize;
    let keep = store == Store::Accumulate;
    // SAFETY: a `Matrix` only holds a slice that reaches to the matrix's last element. `new` and
    // `strided` check this, without wrapping. `columns` drops the elements before its first column
    // and never moves the last column to the right. `transposed` refers to the same elements. The
    // caller has the only pointer to the m·n elements of `out`. `gemm` supports both types of
    // `Element`.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out,
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

/// Copies the transpose of a matrix of this number of columns. Many products with the copy take less time than with a
/// [transposed](Matrix::transposed) matrix: for each of them `gemm` reads such a matrix number by number.
pub(crate) fn transposed<T: Element>(matrix: &[T], columns: usize) -> Vec<T> {
    /// The columns of a task. In each row they are in one cache line, or in two.
    const COLUMNS: usize = 16;
    let rows = matrix.len() / columns;
    let copy = |task: usize, copy: &mut [T]| {
        for (row, numbers) in matrix.chunks_exact(columns).enumerate() {
            let numbers = &numbers[task * COLUMNS..];
            for (copy, &number) in copy.chunks_exact_mut(rows).zip(numbers) {
                copy[row] = number;
            }
        }
    };
    made_by_task(matrix.len(), COLUMNS * rows.max(1), copy).0
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
        let (result, _) = written_by_task(4, 4, |_, memory| {
            (product(Matrix::new(&a, 2, 3), Matrix::new(&b, 3, 2), memory), ())
        });
        assert_eq!(result, out);
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
    fn a_transposed_copy_has_columns_for_rows() {
        for (rows, columns) in [(1, 1), (3, 5), (70, 33), (0, 4)] {
            let matrix: Vec<f32> = (0..rows * columns).map(|at| at as f32).collect();
            let copy = transposed(&matrix, columns);
            let at = |place: usize| matrix[place % rows * columns + place / rows];
            assert_eq!(copy, (0..rows * columns).map(at).collect::<Vec<_>>());
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
