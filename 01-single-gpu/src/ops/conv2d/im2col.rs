//! Unfolding: an image becomes a matrix in which a convolution is one product.
//!
//! The matrix has a row for each place in a patch (channel, kernel row, kernel column) and a column for
//! each output pixel. A 1×3×3 image under a 2×2 kernel, stride 1, no padding:
//!
//! ```text
//! a b c            pixel:  0 1 2 3
//! d e f    →   place (0,0) a b d e
//! g h i        place (0,1) b c e f
//!              place (1,0) d e g h
//!              place (1,1) e f h i
//! ```
//!
//! Row by row this is a shifted copy of the image, so most of the work is copying runs of pixels.
//! [`fold`] is the transposed map, which the gradient with respect to the input needs: it *adds* each
//! entry back to the pixel it came from.

use std::ops::Range;

use super::geometry::Geometry;
use crate::ops::Element;

/// One row of the unfolded matrix meets one image row: which output columns, and where they start.
struct Run {
    /// Where the run lies in the unfolded matrix.
    unfolded: Range<usize>,
    /// The first of its pixels in the image.
    first_pixel: usize,
}

impl Geometry {
    /// The output columns whose input column `col · stride + offset − padding` lies inside the image.
    fn inside(&self, offset: usize, size: usize, outputs: usize) -> Range<usize> {
        let first = self.padding.saturating_sub(offset).div_ceil(self.stride);
        let end = (size + self.padding).saturating_sub(offset).div_ceil(self.stride);
        first.min(outputs)..end.min(outputs)
    }

    /// Calls `visit` for every run of pixels that the unfolded matrix takes from the image.
    fn for_each_run(&self, mut visit: impl FnMut(Run)) {
        let mut row_of_matrix = 0;
        for channel in 0..self.in_channels {
            for kernel_row in 0..self.kernel_h {
                let rows = self.inside(kernel_row, self.height, self.out_h);
                for kernel_col in 0..self.kernel_w {
                    let cols = self.inside(kernel_col, self.width, self.out_w);
                    if !cols.is_empty() {
                        for row in rows.clone() {
                            let start = row_of_matrix * self.pixels() + row * self.out_w;
                            let image_row = row * self.stride + kernel_row - self.padding;
                            let image_col = cols.start * self.stride + kernel_col - self.padding;
                            visit(Run {
                                unfolded: start + cols.start..start + cols.end,
                                first_pixel: (channel * self.height + image_row) * self.width
                                    + image_col,
                            });
                        }
                    }
                    row_of_matrix += 1;
                }
            }
        }
    }

    /// Unfolds one image into `matrix` (patch × pixels). What padding covers becomes zero.
    pub(super) fn unfold<T: Element>(&self, image: &[T], matrix: &mut [T]) {
        if self.padding > 0 {
            matrix.fill(T::zero());
        }
        self.for_each_run(|Run { unfolded, first_pixel }| {
            let run = &mut matrix[unfolded];
            if self.stride == 1 {
                run.copy_from_slice(&image[first_pixel..first_pixel + run.len()]);
            } else {
                for (to, &pixel) in
                    run.iter_mut().zip(image[first_pixel..].iter().step_by(self.stride))
                {
                    *to = pixel;
                }
            }
        });
    }

    /// Adds each entry of `matrix` (patch × pixels) to the pixel of `image` that it was unfolded from.
    pub(super) fn fold<T: Element>(&self, matrix: &[T], image: &mut [T]) {
        self.for_each_run(|Run { unfolded, first_pixel }| {
            let run = &matrix[unfolded];
            if self.stride == 1 {
                for (pixel, &value) in image[first_pixel..].iter_mut().zip(run) {
                    *pixel += value;
                }
            } else {
                let pixels = image[first_pixel..].iter_mut().step_by(self.stride);
                for (pixel, &value) in pixels.zip(run) {
                    *pixel += value;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(size: usize, kernel: usize, stride: usize, padding: usize) -> Geometry {
        let out = (size + 2 * padding - kernel) / stride + 1;
        Geometry {
            batch: 1,
            in_channels: 1,
            height: size,
            width: size,
            out_channels: 1,
            kernel_h: kernel,
            kernel_w: kernel,
            stride,
            padding,
            out_h: out,
            out_w: out,
        }
    }

    #[test]
    fn the_picture_above() {
        let g = geometry(3, 2, 1, 0);
        let mut matrix = [0.0f32; 16];
        g.unfold(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], &mut matrix);
        let expected = [
            [1.0, 2.0, 4.0, 5.0],
            [2.0, 3.0, 5.0, 6.0],
            [4.0, 5.0, 7.0, 8.0],
            [5.0, 6.0, 8.0, 9.0],
        ];
        assert_eq!(matrix, *expected.as_flattened());
    }

    #[test]
    fn folding_is_the_transpose_of_unfolding() {
        // ⟨unfold(x), m⟩ = ⟨x, fold(m)⟩ for all x and m; integers, so the sums are exact.
        for (size, kernel, stride, padding) in
            [(5, 3, 1, 0), (5, 3, 1, 2), (6, 3, 2, 1), (7, 2, 3, 1), (4, 4, 1, 0), (3, 5, 2, 2)]
        {
            let g = geometry(size, kernel, stride, padding);
            let x: Vec<f64> = (0..g.image()).map(|i| ((i * 7 + 3) % 11) as f64).collect();
            let m: Vec<f64> =
                (0..g.patch() * g.pixels()).map(|i| ((i * 5 + 1) % 13) as f64).collect();
            let mut unfolded = vec![0.0; m.len()];
            let mut folded = vec![0.0; x.len()];
            g.unfold(&x, &mut unfolded);
            g.fold(&m, &mut folded);
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            assert_eq!(dot(&unfolded, &m), dot(&x, &folded), "{g:?}");
        }
    }
}
