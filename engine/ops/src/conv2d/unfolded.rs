//! im2col convolution: any convolution as a matrix product.
//!
//! P is the im2col matrix of sixteen images ([`unfold`](super::unfold)), and G the gradient of
//! their convolution's output. O is the number of output channels, and K the number of places in a
//! patch. N is the number of columns: the output pixels of sixteen images.
//!
//! | | product | shape | in parallel over |
//! | --- | --- | --- | --- |
//! | output | W · P | \[O, K\]·\[K, N\] | bands of output rows |
//! | gradient of W, transposed | P · Gᵀ, summed over blocks | \[K, N\]·\[N, O\] | groups of input channels |
//! | gradient of the input | fold(Wᵀ · G) | \[K, O\]·\[O, N\] | groups of input channels |
//!
//! ```text
//!              N: pixels of 16 images                  band 0   band 1   band 2
//!           ┌───────────────────────┐                ┌────────┬────────┬───────┐
//!   K: ch 0 │ a shifted copy        │   forward:     │ unfold │        │       │
//!      ch 0 │ another, shifted      │   columns cut  │ and    │        │       │
//!       …   │ …                     │   into bands   │multiply│        │       │
//!      ch 1 │ …                     │                └────────┴────────┴───────┘
//!           └───────────────────────┘   backward: rows cut into groups of channels
//! ```
//!
//! Each task unfolds its part of P just before the product, so this part stays in the cache. All of
//! P would be K times as large as an input plane. The cost is 2·O·K·N operations and a copy of K·N
//! numbers.
//!
//! Bands and groups depend on shapes alone, and one task computes each number. The number of
//! threads therefore never changes the bits.

use rayon::prelude::*;

use super::frame::{Frame, by_channel};
use super::geometry::Geometry;
use super::gradients::{Gradients, Upstream};
use super::output::{Output, runs};
use crate::Element;
use crate::gemm::{Matrix, Store, gemm};
use crate::lanes::{LANES, lanes, lanes_mut};
use crate::scratch::Scratch;
use crate::simd::vectorised;

/// The maximum number of elements in a band of the im2col matrix. The band fits in a core's private
/// cache together with the weights.
const BAND: usize = 1 << 18;

/// The minimum number of tasks in a forward pass, if there are that many output rows. Also the
/// maximum number of tasks in a backward pass.
const TASKS: usize = 8;

/// The minimum number of rows of the im2col matrix in a group. Every group reads all gradients of
/// the output. In a smaller group, these reads would take most of the time.
const ROWS: usize = 144;

/// The minimum for 1×1 kernels, which have only one row for each channel.
const ROWS_OF_PIXELS: usize = 32;

/// A convolution by im2col.
pub(super) struct Unfolded<'a> {
    geometry: &'a Geometry,
}

impl<'a> Unfolded<'a> {
    pub(super) fn new(geometry: &'a Geometry) -> Self {
        Self { geometry }
    }

    /// Returns the number of output rows in a band.
    fn band(&self) -> usize {
        let g = self.geometry;
        (BAND / (g.patch() * g.out_w * LANES)).clamp(1, (g.out_h / TASKS).max(1))
    }

    /// Convolves the batch `x`, applies the epilogue and writes `output`.
    pub(super) fn forward<T: Element>(&self, x: &[T], weight: &[T], output: &mut Output<'_, T>) {
        let g = self.geometry;
        let weight = Matrix::new(weight, g.out_channels, g.patch());
        let places = g.kernel_h * g.kernel_w;
        let tight = Frame::tight(g.out_h, g.out_w);
        let mut sums = Scratch::new(g.out_image() * LANES);
        for images in runs(g.batch, LANES) {
            let planes = g.load(x, images.clone());

            // `sums` holds one band after another, and each band holds all output channels.
            let row = g.out_channels * g.out_w * LANES;
            let bands = sums.par_chunks_mut(self.band() * row).enumerate();
            bands.for_each(|(band, sums)| {
                let first = band * self.band();
                let rows = first..first + sums.len() / row;
                let columns = rows.len() * g.out_w * LANES;
                let mut unfolded = Scratch::new(g.patch() * columns);
                let channels = unfolded.chunks_exact_mut(places * columns);
                for (rows_of_matrix, plane) in
                    channels.zip(planes.chunks_exact(g.padded().outer() * LANES))
                {
                    vectorised(
                        #[inline(always)]
                        || g.unfold(lanes(plane), rows.clone(), lanes_mut(rows_of_matrix)),
                    );
                }
                gemm(weight, Matrix::new(&unfolded, g.patch(), columns), sums, Store::Replace);
            });

            output.planes(images).for_each(|mut planes| {
                let mut plane = Scratch::new(g.pixels() * LANES);
                let parts = plane.chunks_mut(self.band() * g.out_w * LANES);
                for (part, band) in parts.zip(sums.chunks(self.band() * row)) {
                    part.copy_from_slice(&band[planes.channel * part.len()..][..part.len()]);
                }
                vectorised(
                    #[inline(always)]
                    || planes.finish(lanes_mut(&mut plane), tight),
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
        let g = self.geometry;
        let weight = Matrix::new(weight, g.out_channels, g.patch());
        let (padded, places, columns) = (g.padded(), g.kernel_h * g.kernel_w, g.pixels() * LANES);
        let least = if places == 1 { ROWS_OF_PIXELS } else { ROWS };
        let rows = least.max(g.patch().div_ceil(TASKS));
        let group = rows.div_ceil(places).min(g.in_channels);
        let mut grads = Scratch::new(g.out_channels * columns);
        let mut transposed = Scratch::new(g.patch() * g.out_channels);
        for images in runs(g.batch, LANES) {
            let channels = grads.par_chunks_mut(columns).zip(&mut gradients.bias).enumerate();
            channels.for_each(|(channel, (plane, dbias))| {
                let tight = Frame::tight(g.out_h, g.out_w);
                vectorised(
                    #[inline(always)]
                    || {
                        let (images, plane) = (images.clone(), lanes_mut(plane));
                        upstream.load(images, channel, tight, plane, dbias.as_mut());
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
                let mut unfolded = Scratch::new(rows * columns);
                let mut plane = Scratch::new(padded.outer() * LANES);
                let plane = lanes_mut(&mut plane);
                for (nth, matrix) in unfolded.chunks_exact_mut(places * columns).enumerate() {
                    let start = (first + nth) * padded.inner();
                    let of_channel =
                        x.chunks_exact(g.image()).map(|image| &image[start..][..padded.inner()]);
                    vectorised(
                        #[inline(always)]
                        || {
                            padded.load(of_channel, plane);
                            g.unfold(plane, 0..g.out_h, lanes_mut(matrix));
                        },
                    );
                }
                let patches = Matrix::new(&unfolded, rows, columns);
                gemm(patches, grads.transposed(), dweight, store);

                let Some(dx) = dx else { return };
                let weight = weight.columns(first * places..first * places + rows);
                gemm(weight.transposed(), grads, &mut unfolded, Store::Replace);
                for (matrix, dx) in unfolded.chunks_exact(places * columns).zip(dx) {
                    vectorised(
                        #[inline(always)]
                        || {
                            plane.fill([T::zero(); LANES]);
                            g.fold(lanes(matrix), 0..g.out_h, plane);
                            padded.store(plane, dx);
                        },
                    );
                }
            });
        }
        let sixteen_rows = gradients.weight.par_chunks_mut(LANES * g.patch()).enumerate();
        sixteen_rows.for_each(|(nth, rows)| {
            for (place, from) in transposed.chunks_exact(g.out_channels).enumerate() {
                let rows = rows.chunks_exact_mut(g.patch());
                for (row, &entry) in rows.zip(&from[nth * LANES..]) {
                    row[place] = entry;
                }
            }
        });
    }
}
