//! The forward pass: from images to tiles, from tiles to products, from products to outputs.

use std::ops::Range;

use rayon::prelude::*;

use super::Winograd;
use super::blank::Blank;
use super::finite::{Check, not_finite};
use super::tile::sandwich;
use crate::Element;
use crate::conv2d::geometry::Plane;
use crate::conv2d::output::{Output, runs};
use crate::gemm::{Store, gemm};
use crate::lanes::{LANES, blocks, lanes, lanes_mut};
use crate::scratch::Scratch;
use crate::simd::vectorised;

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
        for images in runs(g.batch, self.images_at_once()) {
            let columns = images.len().div_ceil(LANES) * self.tiles() * LANES;
            let run = &x[images.start * g.image()..images.end * g.image()];
            let (tiles, blanks) = rayon::join(|| self.transform_inputs(run), || self.blanks(run));
            let mut products = Scratch::new(Self::PLACES * g.out_channels * columns);
            let places = products.par_chunks_mut(g.out_channels * columns).enumerate();
            places.for_each(|(place, products)| {
                let weights = Self::place_of_rows(&weights, g.out_channels, g.in_channels, place);
                let tiles = Self::place_of_rows(&tiles, g.in_channels, columns, place);
                gemm(weights, tiles, products, Store::Replace);
            });
            planes_not_finite
                .extend(self.transform_outputs(&products, columns, &blanks, images, output));
        }
        self.replace_outputs(x, weight, output, &planes_not_finite);
    }

    /// Computes Bᵀ·d·B of every tile, `[B, C, H, W]` → `[C, places, columns]`. A column is a tile
    /// of an image.
    pub(super) fn transform_inputs<T: Element>(&self, x: &[T]) -> Scratch<T> {
        let (g, frame) = (self.geometry, self.input_frame());
        let images = x.len() / g.image();
        let columns = images.div_ceil(LANES) * self.tiles() * LANES;
        let mut tiles = Scratch::new(g.in_channels * Self::PLACES * columns);
        let channels = tiles.par_chunks_mut(Self::PLACES * columns).enumerate();
        channels.for_each(|(channel, tiles)| {
            let mut plane = Scratch::new(frame.outer() * LANES);
            let plane = lanes_mut(&mut plane);
            let tiles = lanes_mut(tiles);
            vectorised(
                #[inline(always)]
                || {
                    for (block, images) in blocks(0..images).enumerate() {
                        let start = |image| (image * g.in_channels + channel) * frame.inner();
                        frame.load(images.map(|image| &x[start(image)..][..frame.inner()]), plane);
                        for (tile, origin) in self.origins(frame).enumerate() {
                            let column = block * self.tiles() + tile;
                            sandwich(
                                &Self::INPUTS,
                                #[inline(always)]
                                |row, col| plane[origin + row * frame.outer_width + col],
                                #[inline(always)]
                                |row, col, lane| {
                                    tiles[(row * A + col) * (columns / LANES) + column] = *lane;
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
    /// epilogue.
    ///
    /// Returns the planes in which an output is not finite.
    fn transform_outputs<T: Element>(
        &self,
        products: &[T],
        columns: usize,
        blanks: &[Option<Blank>],
        images: Range<usize>,
        output: &mut Output<'_, T>,
    ) -> Vec<Plane> {
        let (g, frame) = (self.geometry, self.output_frame());
        let first = images.start;
        let finished = output.planes(images).flat_map_iter(|mut planes| {
            let mut sums = Scratch::new(frame.outer() * LANES);
            let sums = lanes_mut(&mut sums);
            let products = lanes(products);
            let found = vectorised(
                #[inline(always)]
                || {
                    let mut check = Check::new();
                    for (tile, origin) in self.origins(frame).enumerate() {
                        let column = planes.block * self.tiles() + tile;
                        let lane = |place: usize| {
                            (place * g.out_channels + planes.channel) * (columns / LANES) + column
                        };
                        sandwich(
                            &Self::OUTPUTS,
                            #[inline(always)]
                            |row, col| products[lane(row * A + col)],
                            #[inline(always)]
                            |row, col, sum| {
                                check.add(sum);
                                sums[origin + row * frame.outer_width + col] = *sum;
                            },
                        );
                    }
                    // The zero mask and the relu would hide such an output, so the check comes
                    // first.
                    let found = if check.passes() {
                        Vec::new()
                    } else {
                        not_finite(sums, frame, planes.images())
                    };
                    if let Some(blank) = &blanks[planes.block] {
                        blank.clear(sums, frame);
                    }
                    planes.finish(sums, frame);
                    found
                },
            );
            let (first, channel) = (first + planes.block * LANES, planes.channel);
            found.into_iter().map(move |image| Plane { image: first + image, channel })
        });
        finished.collect()
    }
}
