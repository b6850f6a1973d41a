//! im2col convolution: any convolution as a matrix product.
//!
//! im2col turns an image into a matrix with one row for each place in a patch (a channel, a kernel row and a kernel column)
//! and one column for each output pixel. For a 1×3×3 image under a 2×2 kernel at stride 1 without padding:
//!
//! ```text
//! a b c            pixel:  0 1 2 3
//! d e f    →   place (0,0) a b d e
//! g h i        place (0,1) b c e f
//!              place (1,0) d e g h
//!              place (1,1) e f h i
//! ```
//!
//! Each row is a shifted copy of the image, so [`Geometry::im2col`] copies runs of pixels. A pixel is a vector of sixteen
//! images ([`simd`](crate::kernels::simd)), and the plane already has its padding. [`Geometry::col2im`] is the transposed
//! map, for the gradient of the input: it *adds* each entry to its pixel.
//!
//! P is the im2col matrix of sixteen images, and G the gradient of their convolution's output. There are O output channels,
//! K places in a patch and N columns: the output pixels of sixteen images.
//!
//! | | product | shape | in parallel over |
//! | --- | --- | --- | --- |
//! | output | W · P | \[O, K\]·\[K, N\] | bands of output rows |
//! | gradient of W, transposed | P · Gᵀ, summed over blocks | \[K, N\]·\[N, O\] | groups of input channels |
//! | gradient of the input | col2im(Wᵀ · G) | \[K, O\]·\[O, N\] | groups of input channels |
//!
//! Each task makes its part of P just before the product, so this part stays in the cache. The cost is 2·O·K·N operations
//! and a copy of K·N numbers. Bands and groups depend on shapes alone, so the number of threads never changes the bits.

use std::ops::Range;

use rayon::prelude::*;

use super::geometry::Geometry;
use super::padded_plane::{PaddedPlane, by_channel};
use super::results::{Gradients, Output, Upstream};
use crate::Element;
use crate::kernels::gemm::{Matrix, Store, gemm, transpose};
use crate::kernels::memory::{Scratch, product};
use crate::kernels::simd::{LANES, Simd, add, runs, vectorised, vectors, vectors_mut};

/// The most elements of a band, which fits in a core's private cache together with the weights.
const BAND: usize = 1 << 18;

/// The fewest tasks of a forward pass with that many output rows, and the most of a backward pass.
const TASKS: usize = 8;

/// The fewest rows of the im2col matrix in a group, and the fewest for 1×1 kernels, which have one row for each channel. In a
/// smaller group, reading all gradients of the output would take most of the time.
const ROWS: usize = 144;
const ROWS_OF_PIXELS: usize = 32;

pub(super) struct Im2col<'a>(pub(super) &'a Geometry);

impl Im2col<'_> {
    /// Returns the number of output rows in a band.
    fn band(&self) -> usize {
        let g = self.0;
        (BAND / product(&[g.patch(), g.out_w, LANES])).clamp(1, (g.out_h / TASKS).max(1))
    }

    /// Returns the number of input channels in a group.
    fn group(&self) -> usize {
        let (g, places) = (self.0, self.0.kernel_h * self.0.kernel_w);
        let least = if places == 1 { ROWS_OF_PIXELS } else { ROWS };
        let rows = least.max(g.patch().div_ceil(TASKS));
        rows.div_ceil(places).min(g.in_channels)
    }

    /// Returns the numbers in a task's part of the im2col matrix in a forward pass.
    pub(super) fn numbers_forward(&self) -> usize {
        product(&[self.0.patch(), self.band(), self.0.out_w, LANES])
    }

    /// Returns the same for a backward pass.
    pub(super) fn numbers_backward(&self) -> usize {
        let g = self.0;
        product(&[self.group(), g.kernel_h, g.kernel_w, g.pixels(), LANES])
    }

    /// Convolves the batch `x`, applies the epilogue and writes `output`.
    pub(super) fn forward<T: Element>(&self, x: &[T], weight: &[T], output: &mut Output<'_, T>) {
        let g = self.0;
        let weight = Matrix::new(weight, g.out_channels, g.patch());
        let places = g.kernel_h * g.kernel_w;
        let unpadded = PaddedPlane::unpadded(g.out_h, g.out_w);
        let mut sums = Scratch::new(g.out_image() * LANES);
        for images in runs(0..g.batch, LANES) {
            let planes = g.load(x, images.clone());

            // `sums` holds one band after another, and each band holds all output channels.
            let row = g.out_channels * g.out_w * LANES;
            let bands = sums.par_chunks_mut(self.band() * row).enumerate();
            bands.for_each(|(band, sums)| {
                let first = band * self.band();
                let rows = first..first + sums.len() / row;
                let columns = rows.len() * g.out_w * LANES;
                let mut patches = Scratch::new(g.patch() * columns);
                let channels = patches.chunks_exact_mut(places * columns);
                for (rows_of_matrix, plane) in
                    channels.zip(planes.chunks_exact(g.padded().outer() * LANES))
                {
                    vectorised(
                        #[inline(always)]
                        || g.im2col(vectors(plane), rows.clone(), vectors_mut(rows_of_matrix)),
                    );
                }
                gemm(weight, Matrix::new(&patches, g.patch(), columns), sums, Store::Replace);
            });

            output.planes(images).for_each(|mut planes| {
                let mut plane = Scratch::new(g.pixels() * LANES);
                let parts = plane.chunks_mut(self.band() * g.out_w * LANES);
                for (part, band) in parts.zip(sums.chunks(self.band() * row)) {
                    part.copy_from_slice(&band[planes.channel * part.len()..][..part.len()]);
                }
                vectorised(
                    #[inline(always)]
                    || planes.apply_epilogue(vectors_mut(&mut plane), unpadded),
                );
            });
        }
    }

    /// Adds up the gradients of a batch, block by block.
    pub(super) fn backward<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        upstream: &Upstream<'_, T>,
        gradients: &mut Gradients<T>,
    ) {
        let g = self.0;
        let weight = Matrix::new(weight, g.out_channels, g.patch());
        let (padded, places, columns) = (g.padded(), g.kernel_h * g.kernel_w, g.pixels() * LANES);
        let (group, unpadded) = (self.group(), PaddedPlane::unpadded(g.out_h, g.out_w));
        let mut grads = Scratch::new(g.out_channels * columns);
        let wants_weight = gradients.weight.is_some();
        let mut transposed = Scratch::new(g.patch() * g.out_channels);
        for images in runs(0..g.batch, LANES) {
            let channels = grads.par_chunks_mut(columns).zip(&mut gradients.bias).enumerate();
            channels.for_each(|(channel, (plane, dbias))| {
                vectorised(
                    #[inline(always)]
                    || {
                        let (images, plane) = (images.clone(), vectors_mut(plane));
                        upstream.load(images, channel, unpadded, plane, dbias.as_mut());
                    },
                );
            });
            let grads = Matrix::new(&grads, g.out_channels, columns);

            let pixels = images.start * g.image()..images.end * g.image();
            let store = if images.start == 0 { Store::Replace } else { Store::Accumulate };
            let x = &x[pixels.clone()];
            let mut dx = match &mut gradients.x {
                Some(dx) => by_channel(&mut dx[pixels], g.in_channels, padded.inner()),
                None => Vec::new(),
            };
            let mut groups = dx.chunks_mut(group);
            let groups: Vec<_> = transposed
                .chunks_mut(group * places * g.out_channels)
                .map(|dweight| (dweight, groups.next()))
                .collect();
            groups.into_par_iter().enumerate().for_each(|(nth, (dweight, dx))| {
                let rows = dweight.len() / g.out_channels;
                let first = nth * group;
                let mut patches = Scratch::new(rows * columns);
                let mut plane = Scratch::new(padded.outer() * LANES);
                let plane = vectors_mut(&mut plane);
                if wants_weight {
                    self.load_patches(x, first, plane, &mut patches);
                    gemm(Matrix::new(&patches, rows, columns), grads.transposed(), dweight, store);
                }

                let Some(dx) = dx else { return };
                let weight = weight.columns(first * places..first * places + rows);
                gemm(weight.transposed(), grads, &mut patches, Store::Replace);
                for (matrix, dx) in patches.chunks_exact(places * columns).zip(dx) {
                    vectorised(
                        #[inline(always)]
                        || {
                            plane.fill([T::zero(); LANES]);
                            g.col2im(vectors(matrix), 0..g.out_h, plane);
                            padded.store(plane, dx);
                        },
                    );
                }
            });
        }
        if let Some(dweight) = &mut gradients.weight {
            self.transpose(&transposed, dweight);
        }
    }

    /// Writes the rows of the images `x`, from input channel `first` on. `plane` is memory for a padded plane.
    fn load_patches<T: Element>(
        &self,
        x: &[T],
        first: usize,
        plane: &mut [Simd<T>],
        patches: &mut [T],
    ) {
        let (g, padded) = (self.0, self.0.padded());
        let rows_of_channel = g.kernel_h * g.kernel_w * g.pixels() * LANES;
        for (nth, matrix) in patches.chunks_exact_mut(rows_of_channel).enumerate() {
            let start = (first + nth) * padded.inner();
            let of_channel =
                x.chunks_exact(g.image()).map(|image| &image[start..][..padded.inner()]);
            vectorised(
                #[inline(always)]
                || {
                    padded.load(of_channel, plane);
                    g.im2col(plane, 0..g.out_h, vectors_mut(matrix));
                },
            );
        }
    }

    /// Writes the transposed gradient of the weight, `[K, O]`, as `[O, K]`.
    fn transpose<T: Element>(&self, transposed: &[T], dweight: &mut [T]) {
        let g = self.0;
        let sixteen_rows = dweight.par_chunks_mut(LANES * g.patch()).enumerate();
        sixteen_rows.for_each(|(nth, rows)| {
            let sizes = [g.patch(), rows.len() / g.patch(), g.out_channels];
            transpose(&transposed[nth * LANES..], sizes, rows, g.patch());
        });
    }
}

impl Geometry {
    /// Returns the first pixel of each run of the matrix: a run for each place of a channel's patch and each of the `rows`.
    fn starts(&self, rows: Range<usize>) -> impl Iterator<Item = usize> {
        let (width, stride) = (self.padded().outer_width, self.plane_stride());
        let places = (0..self.kernel_h)
            .flat_map(move |row| (0..self.kernel_w).map(move |col| row * width + col));
        places.flat_map(move |place| rows.clone().map(move |row| place + row * stride * width))
    }

    /// Copies one channel's plane to the channel's rows of the matrix, for the output rows `rows`.
    #[inline(always)]
    pub(super) fn im2col<T: Element>(
        &self,
        plane: &[Simd<T>],
        rows: Range<usize>,
        matrix: &mut [Simd<T>],
    ) {
        let stride = self.plane_stride();
        for (run, start) in matrix.chunks_exact_mut(self.out_w).zip(self.starts(rows)) {
            if stride == 1 {
                run.copy_from_slice(&plane[start..start + self.out_w]);
            } else {
                for (to, from) in run.iter_mut().zip(plane[start..].iter().step_by(stride)) {
                    *to = *from;
                }
            }
        }
    }

    /// Adds each entry in a channel's rows of the matrix to the pixel that it was copied from.
    #[inline(always)]
    pub(super) fn col2im<T: Element>(
        &self,
        matrix: &[Simd<T>],
        rows: Range<usize>,
        plane: &mut [Simd<T>],
    ) {
        let stride = self.plane_stride();
        for (run, start) in matrix.chunks_exact(self.out_w).zip(self.starts(rows)) {
            for (pixel, term) in plane[start..].iter_mut().step_by(stride).zip(run) {
                *pixel = add(*pixel, *term);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv2d;

    /// The sizes of a convolution with one input channel and one output channel.
    fn geometry(size: usize, kernel: usize, stride: usize, padding: usize) -> Geometry {
        conv2d::tests::formula::geometry([1, 1, size, size, 1, kernel, kernel, stride, padding])
    }

    #[test]
    fn the_picture_above() {
        let g = geometry(3, 2, 1, 0);
        let plane: Vec<Simd<f32>> = (1..=9).map(|pixel| [pixel as f32; LANES]).collect();
        let mut matrix = [[0.0; LANES]; 16];
        g.im2col(&plane, 0..2, &mut matrix);
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
        // ⟨im2col(x), m⟩ = ⟨x, col2im(m)⟩ for all x and m. The entries are integers, so the sums
        // are exact.
        for (size, kernel, stride, padding) in [
            (5, 3, 1, 0),
            (5, 3, 1, 2),
            (6, 3, 2, 1),
            (7, 2, 3, 1),
            (4, 4, 1, 0),
            (3, 5, 2, 2),
            (7, 1, 3, 0),
        ] {
            let g = geometry(size, kernel, stride, padding);
            let fill = |len: usize, a: usize, m: usize| -> Vec<Simd<f64>> {
                (0..len).map(|i| std::array::from_fn(|lane| ((i * a + lane) % m) as f64)).collect()
            };
            let dot = |a: &[Simd<f64>], b: &[Simd<f64>]| -> f64 {
                a.as_flattened().iter().zip(b.as_flattened()).map(|(a, b)| a * b).sum()
            };
            let x = fill(g.padded().outer(), 7, 11);
            let (mut unfolded, mut folded) = (0.0, vec![[0.0; LANES]; x.len()]);
            // Two bands of rows, if there are at least two rows.
            let half = g.out_h.div_ceil(2);
            for rows in [0..half, half..g.out_h] {
                let m = fill(g.patch() * rows.len() * g.out_w, 5, 13);
                let mut patches = vec![[0.0; LANES]; m.len()];
                g.im2col(&x, rows.clone(), &mut patches);
                g.col2im(&m, rows, &mut folded);
                unfolded += dot(&patches, &m);
            }
            assert_eq!(unfolded, dot(&x, &folded), "{g:?}");
        }
    }
}
