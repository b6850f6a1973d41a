//! im2col: turns an image into a matrix, and a convolution into one matrix product.
//!
//! The matrix has one row for each place in a patch. A place is a channel, a kernel row and a
//! kernel column. The matrix has one column for each output pixel. For example, this is the matrix
//! of a 1×3×3 image under a 2×2 kernel at stride 1 without padding:
//!
//! ```text
//! a b c            pixel:  0 1 2 3
//! d e f    →   place (0,0) a b d e
//! g h i        place (0,1) b c e f
//!              place (1,0) d e g h
//!              place (1,1) e f h i
//! ```
//!
//! Each row is a shifted copy of the image, so [`unfold`](Geometry::unfold) copies runs of pixels.
//! A pixel is a vector of sixteen images ([`lanes`](crate::lanes)), and the plane already has its
//! padding.
//!
//! [`fold`](Geometry::fold) is col2im, the transposed map. The gradient with respect to the input
//! needs this map: `fold` *adds* each entry to the pixel that the entry was copied from.

use std::ops::Range;

use super::geometry::Geometry;
use crate::Element;
use crate::lanes::{Lane, add};

impl Geometry {
    /// Returns the first pixel that each run of the matrix copies. There is one run for each place
    /// of a channel's patch and each output row in `rows`.
    fn starts(&self, rows: Range<usize>) -> impl Iterator<Item = usize> {
        let (width, stride) = (self.padded().outer_width, self.stride);
        let places = (0..self.kernel_h)
            .flat_map(move |row| (0..self.kernel_w).map(move |col| row * width + col));
        places.flat_map(move |place| rows.clone().map(move |row| place + row * stride * width))
    }

    /// Copies one channel's plane to the channel's rows of the matrix, for the output rows `rows`.
    #[inline(always)]
    pub(super) fn unfold<T: Element>(
        &self,
        plane: &[Lane<T>],
        rows: Range<usize>,
        matrix: &mut [Lane<T>],
    ) {
        for (run, start) in matrix.chunks_exact_mut(self.out_w).zip(self.starts(rows)) {
            if self.stride == 1 {
                run.copy_from_slice(&plane[start..start + self.out_w]);
            } else {
                for (to, from) in run.iter_mut().zip(plane[start..].iter().step_by(self.stride)) {
                    *to = *from;
                }
            }
        }
    }

    /// Adds each entry in a channel's rows of the matrix to the pixel that the entry was copied
    /// from.
    #[inline(always)]
    pub(super) fn fold<T: Element>(
        &self,
        matrix: &[Lane<T>],
        rows: Range<usize>,
        plane: &mut [Lane<T>],
    ) {
        for (run, start) in matrix.chunks_exact(self.out_w).zip(self.starts(rows)) {
            for (pixel, term) in plane[start..].iter_mut().step_by(self.stride).zip(run) {
                *pixel = add(*pixel, *term);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv2d;
    use crate::lanes::LANES;

    /// The sizes of a convolution with one input channel and one output channel.
    fn geometry(size: usize, kernel: usize, stride: usize, padding: usize) -> Geometry {
        conv2d::formula::geometry([1, 1, size, size, 1, kernel, kernel, stride, padding])
    }

    #[test]
    fn the_picture_above() {
        let g = geometry(3, 2, 1, 0);
        let plane: Vec<Lane<f32>> = (1..=9).map(|pixel| [pixel as f32; LANES]).collect();
        let mut matrix = [[0.0; LANES]; 16];
        g.unfold(&plane, 0..2, &mut matrix);
        let expected = [
            [1.0, 2.0, 4.0, 5.0],
            [2.0, 3.0, 5.0, 6.0],
            [4.0, 5.0, 7.0, 8.0],
            [5.0, 6.0, 8.0, 9.0],
        ];
        assert_eq!(matrix.map(|lane| lane[3]), *expected.as_flattened());
    }

    #[test]
    fn folding_is_the_transpose_of_unfolding() {
        // ⟨unfold(x), m⟩ = ⟨x, fold(m)⟩ for all x and m. The entries are integers, so the sums are
        // exact.
        for (size, kernel, stride, padding) in
            [(5, 3, 1, 0), (5, 3, 1, 2), (6, 3, 2, 1), (7, 2, 3, 1), (4, 4, 1, 0), (3, 5, 2, 2)]
        {
            let g = geometry(size, kernel, stride, padding);
            let fill = |len: usize, a: usize, m: usize| -> Vec<Lane<f64>> {
                (0..len).map(|i| std::array::from_fn(|lane| ((i * a + lane) % m) as f64)).collect()
            };
            let x = fill(g.padded().outer(), 7, 11);
            let m = fill(g.patch() * g.pixels(), 5, 13);
            let mut unfolded = vec![[0.0; LANES]; m.len()];
            let mut folded = vec![[0.0; LANES]; x.len()];
            // Two bands of rows, if there are at least two rows.
            let half = g.out_h.div_ceil(2);
            for rows in [0..half, half..g.out_h] {
                let band = |matrix: &[Lane<f64>]| -> Vec<Lane<f64>> {
                    let rows_of_matrix = matrix.chunks_exact(g.pixels());
                    rows_of_matrix
                        .flat_map(|row| row[rows.start * g.out_w..rows.end * g.out_w].to_vec())
                        .collect()
                };
                let mut part = band(&unfolded);
                g.unfold(&x, rows.clone(), &mut part);
                let mut part = part.into_iter();
                for row in unfolded.chunks_exact_mut(g.pixels()) {
                    row[rows.start * g.out_w..rows.end * g.out_w]
                        .fill_with(|| part.next().unwrap());
                }
                g.fold(&band(&m), rows.clone(), &mut folded);
            }
            let dot = |a: &[Lane<f64>], b: &[Lane<f64>]| -> f64 {
                a.as_flattened().iter().zip(b.as_flattened()).map(|(a, b)| a * b).sum()
            };
            assert_eq!(dot(&unfolded, &m), dot(&x, &folded), "{g:?}");
        }
    }
}
