//! The forward pass: from images to tiles, from tiles to products, from products to outputs.

use std::ops::Range;

use rayon::prelude::*;

use super::finite::{Check, not_finite};
use super::zero_mask::ZeroMask;
use super::{Winograd, sandwich};
use crate::Element;
use crate::conv2d::geometry::Plane;
use crate::conv2d::results::Output;
use crate::kernels::gemm::{Store, gemm};
use crate::kernels::memory::Scratch;
use crate::kernels::simd::{LANES, runs, vectorised, vectors, vectors_mut};

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Convolves the batch `x` and runs the epilogue into `output`.
    pub(in crate::conv2d) fn forward<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        output: &mut Output<'_, T>,
    ) {
        let g = self.geometry;
        let weights = self.transform_weights(weight);
        let mut planes_not_finite = Vec::new();
        for images in runs(0..g.batch, self.images_at_once()) {
            let columns = images.len().div_ceil(LANES) * self.tiles() * LANES;
            let run = &x[images.start * g.image()..images.end * g.image()];
            let (tiles, zero_masks) =
                rayon::join(|| self.transform_inputs(run), || self.zero_masks(run));
            let mut products = Scratch::new(Self::PLACES * g.out_channels * columns);
            let places = products.par_chunks_mut(g.out_channels * columns).enumerate();
            places.for_each(|(place, products)| {
                let weights = Self::place_of_rows(&weights, g.out_channels, g.in_channels, place);
                let tiles = Self::place_of_rows(&tiles, g.in_channels, columns, place);
                gemm(weights, tiles, products, Store::Replace);
            });
            let found = self.transform_outputs(&products, columns, &zero_masks, images, output);
            planes_not_finite.extend(found);
        }
        self.replace_outputs(x, weight, output, &planes_not_finite);
    }

    /// Computes Bᵀ·d·B of every tile, `[B, C, H, W]` → `[C, places, columns]`, a column per tile.
    pub(super) fn transform_inputs<T: Element>(&self, x: &[T]) -> Scratch<T> {
        let (g, padded) = (self.geometry, self.padded_input());
        let images = x.len() / g.image();
        let columns = images.div_ceil(LANES) * self.tiles() * LANES;
        let mut tiles = Scratch::new(g.in_channels * Self::PLACES * columns);
        let channels = tiles.par_chunks_mut(Self::PLACES * columns).enumerate();
        channels.for_each(|(channel, tiles)| {
            let mut plane = Scratch::new(padded.outer() * LANES);
            let plane = vectors_mut(&mut plane);
            let tiles = vectors_mut(tiles);
            vectorised(
                #[inline(always)]
                || {
                    for (block, images) in runs(0..images, LANES).enumerate() {
                        let start = |image| (image * g.in_channels + channel) * padded.inner();
                        padded
                            .load(images.map(|image| &x[start(image)..][..padded.inner()]), plane);
                        for (tile, origin) in self.origins(padded).enumerate() {
                            let column = block * self.tiles() + tile;
                            sandwich(
                                &Self::INPUTS,
                                #[inline(always)]
                                |row, col| plane[origin + row * padded.outer_width + col],
                                #[inline(always)]
                                |row, col, vector| {
                                    tiles[(row * A + col) * (columns / LANES) + column] = *vector;
                                },
                            );
                        }
                    }
                },
            );
        });
        tiles
    }

    /// Computes Aᵀ·P·A of every tile of products, `[places, O, columns]` → planes after the
    /// epilogue. Returns the planes in which an output is not finite.
    fn transform_outputs<T: Element>(
        &self,
        products: &[T],
        columns: usize,
        zero_masks: &[Option<ZeroMask>],
        images: Range<usize>,
        output: &mut Output<'_, T>,
    ) -> Vec<Plane> {
        let (g, padded) = (self.geometry, self.padded_output());
        let first = images.start;
        let finished = output.planes(images).flat_map_iter(|mut planes| {
            let mut sums = Scratch::new(padded.outer() * LANES);
            let sums = vectors_mut(&mut sums);
            let products = vectors(products);
            let found = vectorised(
                #[inline(always)]
                || {
                    let mut check = Check::new();
                    for (tile, origin) in self.origins(padded).enumerate() {
                        let column = planes.block * self.tiles() + tile;
                        let at = |place: usize| {
                            (place * g.out_channels + planes.channel) * (columns / LANES) + column
                        };
                        sandwich(
                            &Self::OUTPUTS,
                            #[inline(always)]
                            |row, col| products[at(row * A + col)],
                            #[inline(always)]
                            |row, col, sum| {
                                check.add(sum);
                                sums[origin + row * padded.outer_width + col] = *sum;
                            },
                        );
                    }
                    // Before the zero mask and the relu, which would hide such an output.
                    let found = if check.passes() {
                        Vec::new()
                    } else {
                        not_finite(sums, padded, planes.y.len())
                    };
                    if let Some(mask) = &zero_masks[planes.block] {
                        mask.apply(sums, padded);
                    }
                    planes.apply_epilogue(sums, padded);
                    found
                },
            );
            let (first, channel) = (first + planes.block * LANES, planes.channel);
            found.into_iter().map(move |image| Plane { image: first + image, channel })
        });
        finished.collect()
    }
}
