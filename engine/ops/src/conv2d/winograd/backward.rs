//! The backward pass: the gradients of weights, bias and input.

use std::ops::Range;

use rayon::prelude::*;

use super::finite::{Check, not_finite};
use super::{Winograd, sandwich};
use crate::Element;
use crate::conv2d::geometry::Plane;
use crate::conv2d::padded_plane::by_channel;
use crate::conv2d::results::{Gradients, Upstream};
use crate::kernels::gemm::{Store, gemm};
use crate::kernels::memory::Scratch;
use crate::kernels::simd::{LANES, add, runs, vectorised, vectors, vectors_mut};

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Adds up the gradients of a batch, run by run.
    pub(in crate::conv2d) fn backward<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        upstream: &Upstream<'_, T>,
        gradients: &mut Gradients<T>,
    ) {
        let g = self.geometry;
        let weights = gradients.x.is_some().then(|| self.transform_weights(weight));
        let place = g.out_channels * g.in_channels;
        let mut sums = gradients.weight.as_ref().map(|_| Scratch::new(Self::PLACES * place));
        let mut planes_not_finite = Vec::new();
        for images in runs(0..g.batch, self.images_at_once()) {
            let columns = images.len().div_ceil(LANES) * self.tiles() * LANES;
            let pixels = images.start * g.image()..images.end * g.image();
            let tiles = sums.as_ref().map(|_| self.transform_inputs(&x[pixels.clone()]));
            let products =
                self.transform_gradients(upstream, images.clone(), columns, &mut gradients.bias);

            let mut dtiles =
                weights.as_ref().map(|_| Scratch::new(Self::PLACES * g.in_channels * columns));
            let store = if images.start == 0 { Store::Replace } else { Store::Accumulate };
            let of_places = by_place(sums.as_deref_mut(), place, Self::PLACES).into_par_iter();
            let dtiles_of_places =
                by_place(dtiles.as_deref_mut(), g.in_channels * columns, Self::PLACES);
            let places = of_places.zip(dtiles_of_places);
            places.enumerate().for_each(|(place, (sums, dtiles))| {
                let products = Self::place_of_rows(&products, g.out_channels, columns, place);
                // dU: the sum over columns, run after run.
                if let (Some(tiles), Some(sums)) = (&tiles, sums) {
                    let tiles = Self::place_of_rows(tiles, g.in_channels, columns, place);
                    for first in (0..columns).step_by(Self::SUMMED) {
                        let part = first..columns.min(first.saturating_add(Self::SUMMED));
                        let store = if first == 0 { store } else { Store::Accumulate };
                        let tiles = tiles.columns(part.clone());
                        gemm(products.columns(part), tiles.transposed(), sums, store);
                    }
                }
                // dV, while the products are in the cache.
                if let (Some(weights), Some(dtiles)) = (&weights, dtiles) {
                    let weights =
                        Self::place_of_rows(weights, g.out_channels, g.in_channels, place);
                    gemm(weights.transposed(), products, dtiles, Store::Replace);
                }
            });
            if let (Some(dx), Some(dtiles)) = (&mut gradients.x, &dtiles) {
                let found = self.add_up_tiles(dtiles, columns, &mut dx[pixels]);
                let of_batch = |plane: Plane| Plane { image: images.start + plane.image, ..plane };
                planes_not_finite.extend(found.into_iter().map(of_batch));
            }
        }
        let kernels_not_finite = match (&sums, &mut gradients.weight) {
            (Some(sums), Some(dweight)) => self.weight_gradients(sums, dweight),
            _ => Vec::new(),
        };
        let not_finite = (planes_not_finite.as_slice(), kernels_not_finite.as_slice());
        self.replace_gradients(x, weight, upstream, gradients, not_finite);
    }

    /// Computes A·dy·Aᵀ of every tile of gradients: → `[O, places, columns]`.
    fn transform_gradients<T: Element>(
        &self,
        upstream: &Upstream<'_, T>,
        images: Range<usize>,
        columns: usize,
        dbias: &mut [Option<T>],
    ) -> Scratch<T> {
        let (g, padded) = (self.geometry, self.padded_output());
        let mut products = Scratch::new(g.out_channels * Self::PLACES * columns);
        let channels = products.par_chunks_mut(Self::PLACES * columns).zip(dbias).enumerate();
        channels.for_each(|(channel, (products, dbias))| {
            let mut sums = Scratch::new(padded.outer() * LANES);
            let sums = vectors_mut(&mut sums);
            let products = vectors_mut(products);
            vectorised(
                #[inline(always)]
                || {
                    for (block, images) in runs(images.clone(), LANES).enumerate() {
                        upstream.load(images, channel, padded, sums, dbias.as_mut());
                        for (tile, origin) in self.origins(padded).enumerate() {
                            let column = block * self.tiles() + tile;
                            sandwich(
                                &Self::OUTPUTS_BACK,
                                #[inline(always)]
                                |row, col| sums[origin + row * padded.outer_width + col],
                                #[inline(always)]
                                |row, col, vector| {
                                    products[(row * A + col) * (columns / LANES) + column] =
                                        *vector;
                                },
                            );
                        }
                    }
                },
            );
        });
        products
    }

    /// Computes B·dV·Bᵀ of every tile and adds the tiles where they overlap: `[places, C, columns]`
    /// → `[B, C, H, W]`. Returns the planes in which a gradient is not finite.
    fn add_up_tiles<T: Element>(&self, tiles: &[T], columns: usize, dx: &mut [T]) -> Vec<Plane> {
        let (g, padded) = (self.geometry, self.padded_input());
        let tiles = vectors(tiles);
        let blocks = dx.par_chunks_mut(LANES * g.image()).enumerate();
        let planes = blocks.flat_map(|(block, dx)| {
            let channels = by_channel(dx, g.in_channels, padded.inner());
            channels.into_par_iter().enumerate().map(move |(channel, dx)| (block, channel, dx))
        });
        let finished = planes.flat_map_iter(|(block, channel, mut dx)| {
            let mut plane = Scratch::new(padded.outer() * LANES);
            let plane = vectors_mut(&mut plane);
            let found = vectorised(
                #[inline(always)]
                || {
                    plane.fill([T::zero(); LANES]);
                    for (tile, origin) in self.origins(padded).enumerate() {
                        let column = block * self.tiles() + tile;
                        let at = |place: usize| {
                            (place * g.in_channels + channel) * (columns / LANES) + column
                        };
                        sandwich(
                            &Self::INPUTS_BACK,
                            #[inline(always)]
                            |row, col| tiles[at(row * A + col)],
                            #[inline(always)]
                            |row, col, term| {
                                let pixel = &mut plane[origin + row * padded.outer_width + col];
                                *pixel = add(*pixel, *term);
                            },
                        );
                    }
                    padded.store(plane, &mut dx);
                    if Check::of(plane).passes() {
                        Vec::new()
                    } else {
                        not_finite(plane, padded, dx.len())
                    }
                },
            );
            found.into_iter().map(move |image| Plane { image: block * LANES + image, channel })
        });
        finished.collect()
    }
}

/// Splits numbers, if there are any, into `places` mutable slices of `len` each.
fn by_place<T>(numbers: Option<&mut [T]>, len: usize, places: usize) -> Vec<Option<&mut [T]>> {
    match numbers {
        Some(numbers) => numbers.chunks_mut(len).map(Some).collect(),
        None => (0..places).map(|_| None).collect(),
    }
}
