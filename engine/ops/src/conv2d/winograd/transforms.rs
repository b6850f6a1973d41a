//! The transforms: of planes to tiles and of kernels to weights, and back.

use std::ops::Range;

use rayon::prelude::*;

use super::finite::{not_finite, spoil};
use super::{Winograd, sandwich};
use crate::Element;
use crate::conv2d::padded_plane::{PaddedPlane, by_channel};
use crate::conv2d::results::{Output, Upstream};
use crate::kernels::memory::Scratch;
use crate::kernels::simd::{LANES, Simd, add, runs, vectorised, vectors, vectors_mut};

/// The two transforms from planes to tiles.
impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Computes Bᵀ·d·B of every tile of the images `x`: `[B, C, H, W]` → `[C, places, columns]`.
    pub(super) fn transform_inputs<T: Element>(&self, x: &[T]) -> Scratch<T> {
        let (g, padded) = (self.geometry, self.padded_input());
        let channels = (0..g.in_channels).map(|channel| {
            #[inline(always)]
            move |images: Range<usize>, plane: &mut [Simd<T>]| {
                let start = |image| (image * g.in_channels + channel) * padded.inner();
                padded.load(images.map(|image| &x[start(image)..][..padded.inner()]), plane);
            }
        });
        self.tiles_of_planes(
            #[inline(always)]
            || &Self::INPUTS,
            padded,
            0..x.len() / g.image(),
            channels.collect(),
        )
    }

    /// Computes A·dy·Aᵀ of every tile of gradients: → `[O, places, columns]`.
    pub(super) fn transform_gradients<T: Element>(
        &self,
        upstream: &Upstream<'_, T>,
        images: Range<usize>,
        dbias: &mut [Option<T>],
    ) -> Scratch<T> {
        let padded = self.padded_output();
        let channels = dbias.iter_mut().enumerate().map(|(channel, dbias)| {
            #[inline(always)]
            move |images: Range<usize>, plane: &mut [Simd<T>]| {
                upstream.load(images, channel, padded, plane, dbias.as_mut());
            }
        });
        self.tiles_of_planes(
            #[inline(always)]
            || &Self::OUTPUTS_BACK,
            padded,
            images,
            channels.collect(),
        )
    }

    /// Transforms every tile of the planes: → `[channels, places, columns]`, with a column per tile. Each of `channels` loads a
    /// channel's plane of a block of images. `matrix` returns a constant, which the compiler can only see in a function.
    fn tiles_of_planes<T: Element, const I: usize>(
        &self,
        matrix: impl Fn() -> &'static [[f64; I]; A] + Sync,
        padded: PaddedPlane,
        images: Range<usize>,
        channels: Vec<impl FnMut(Range<usize>, &mut [Simd<T>]) + Send>,
    ) -> Scratch<T> {
        let columns = self.columns(&images);
        let mut tiles = Scratch::new(channels.len() * Self::PLACES * columns);
        let tiles_of_channels = tiles.par_chunks_mut(Self::PLACES * columns);
        tiles_of_channels.zip(channels).for_each(|(tiles, mut load)| {
            let mut plane = Scratch::new(padded.outer() * LANES);
            let plane = vectors_mut(&mut plane);
            let tiles = vectors_mut(tiles);
            vectorised(
                #[inline(always)]
                || {
                    for (block, images) in runs(images.clone(), LANES).enumerate() {
                        load(images, plane);
                        for (tile, origin) in self.origins(padded).enumerate() {
                            let column = block * self.tiles() + tile;
                            sandwich(
                                matrix(),
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
}

/// The two transforms from tiles to planes. Both return whether they spoilt a plane.
impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Computes Aᵀ·P·A of every tile of products, `[places, O, columns]` → planes after the epilogue.
    pub(super) fn transform_outputs<T: Element>(
        &self,
        products: &[T],
        zero_masks: &[Option<Vec<Simd<bool>>>],
        images: Range<usize>,
        output: &mut Output<'_, T>,
    ) -> bool {
        let (channels, padded) = (self.geometry.out_channels, self.padded_output());
        let spoilt = output.planes(images).map(|mut planes| {
            let mut sums = Scratch::new(padded.outer() * LANES);
            let sums = vectors_mut(&mut sums);
            let nth = planes.block * channels + planes.channel;
            vectorised(
                #[inline(always)]
                || {
                    self.for_each_number(
                        &Self::OUTPUTS,
                        (vectors(products), channels, nth),
                        padded,
                        #[inline(always)]
                        |pixel, sum| sums[pixel] = *sum,
                    );
                    let not_finite = not_finite(sums);
                    if let Some(mask) = &zero_masks[planes.block] {
                        padded.keep(sums, mask);
                    }
                    // After the zero mask and before the relu, which would hide a spoilt plane.
                    let spoilt = spoil(sums, not_finite);
                    planes.apply_epilogue(sums, padded);
                    spoilt
                },
            )
        });
        spoilt.reduce(|| false, |one, other| one | other)
    }

    /// Computes B·dV·Bᵀ of every tile, and adds the tiles where they overlap: `[places, C, columns]` → `[B, C, H, W]`.
    pub(super) fn add_up_tiles<T: Element>(&self, tiles: &[T], dx: &mut [T]) -> bool {
        let (channels, padded) = (self.geometry.in_channels, self.padded_input());
        let planes = by_channel(dx, channels, padded.inner()).into_par_iter().enumerate();
        let spoilt = planes.map(|(nth, mut dx)| {
            let mut plane = Scratch::new(padded.outer() * LANES);
            let plane = vectors_mut(&mut plane);
            vectorised(
                #[inline(always)]
                || {
                    plane.fill([T::zero(); LANES]);
                    self.for_each_number(
                        &Self::INPUTS_BACK,
                        (vectors(tiles), channels, nth),
                        padded,
                        #[inline(always)]
                        |pixel, term| plane[pixel] = add(plane[pixel], *term),
                    );
                    let spoilt = spoil(plane, not_finite(plane));
                    padded.store(plane, &mut dx);
                    spoilt
                },
            )
        });
        spoilt.reduce(|| false, |one, other| one | other)
    }

    /// Transforms the tiles of the nth plane of a run, `[places, channels, columns]`, block by block and channel by channel, and
    /// calls `write` with each number and its pixel in the padded plane.
    #[inline(always)]
    fn for_each_number<T: Element, const O: usize>(
        &self,
        matrix: &[[f64; A]; O],
        (tiles, channels, nth): (&[Simd<T>], usize, usize),
        padded: PaddedPlane,
        mut write: impl FnMut(usize, &Simd<T>),
    ) {
        let (block, channel) = (nth / channels, nth % channels);
        let columns = tiles.len() / (Self::PLACES * channels);
        for (tile, origin) in self.origins(padded).enumerate() {
            let column = channel * columns + block * self.tiles() + tile;
            sandwich(
                matrix,
                #[inline(always)]
                |row, col| tiles[(row * A + col) * channels * columns + column],
                #[inline(always)]
                |row, col, number| write(origin + row * padded.outer_width + col, number),
            );
        }
    }
}

/// The two transforms of kernels, once for all tiles: sixteen kernels per SIMD vector.
impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Computes G·w·Gᵀ of every kernel, `[O, C, R, R]` → `[O, places, C]`.
    pub(super) fn transform_weights<T: Element>(&self, weight: &[T]) -> Scratch<T> {
        let channels = self.geometry.in_channels;
        let mut transformed = Scratch::new(self.geometry.out_channels * Self::PLACES * channels);
        transformed
            .par_chunks_mut(Self::PLACES * channels)
            .zip(weight.par_chunks(channels * R * R))
            .for_each(|(transformed, kernels)| {
                vectorised(
                    #[inline(always)]
                    || {
                        for (group, kernels) in kernels.chunks(LANES * R * R).enumerate() {
                            let (first, count) = (group * LANES, kernels.len() / (R * R));
                            let vectors = side_by_side::<T, R>(kernels);
                            sandwich(
                                &Self::WEIGHTS,
                                #[inline(always)]
                                |row, column| vectors[row][column],
                                #[inline(always)]
                                |row, column, vector| {
                                    let place = (row * A + column) * channels + first;
                                    let to = &mut transformed[place..place + count];
                                    match to.as_mut_array() {
                                        Some(to) => *to = *vector,
                                        None => to.copy_from_slice(&vector[..count]),
                                    }
                                },
                            );
                        }
                    },
                );
            });
        transformed
    }

    /// Computes Gᵀ·dU·G of every kernel, `[places, O, C]` → `[O, C, R, R]`. Returns whether it spoilt a kernel.
    pub(super) fn weight_gradients<T: Element>(
        &self,
        transformed: &[T],
        gradients: &mut [T],
    ) -> bool {
        let (outputs, channels) = (self.geometry.out_channels, self.geometry.in_channels);
        let kernels = gradients.par_chunks_mut(channels * R * R).enumerate();
        let spoilt = kernels.map(|(output, kernels)| {
            vectorised(
                #[inline(always)]
                || {
                    let mut spoilt = false;
                    for (group, kernels) in kernels.chunks_mut(LANES * R * R).enumerate() {
                        let (first, count) = (group * LANES, kernels.len() / (R * R));
                        let mut vectors = [[[T::zero(); LANES]; R]; R];
                        sandwich(
                            &Self::WEIGHTS_BACK,
                            #[inline(always)]
                            |row, column| {
                                let place = row * A + column;
                                let start = (place * outputs + output) * channels + first;
                                let from = &transformed[start..start + count];
                                match from.as_array() {
                                    Some(vector) => *vector,
                                    None => {
                                        let mut vector = [T::zero(); LANES];
                                        vector[..count].copy_from_slice(from);
                                        vector
                                    }
                                }
                            },
                            #[inline(always)]
                            |row, column, vector| vectors[row][column] = *vector,
                        );
                        let not_finite = not_finite(vectors.as_flattened());
                        spoilt |= spoil(vectors.as_flattened_mut(), not_finite);
                        one_after_another(&vectors, kernels);
                    }
                    spoilt
                },
            )
        });
        spoilt.reduce(|| false, |one, other| one | other)
    }
}

/// Puts sixteen kernels side by side, or fewer kernels and zeros. All kernels are written before a
/// SIMD vector is read: a read right after sixteen single writes would wait for them.
#[inline(always)]
fn side_by_side<T: Element, const R: usize>(kernels: &[T]) -> [[Simd<T>; R]; R] {
    let mut vectors = [[[T::zero(); LANES]; R]; R];
    for (nth, kernel) in kernels.chunks_exact(R * R).take(LANES).enumerate() {
        for (vectors, row) in vectors.iter_mut().zip(kernel.as_chunks::<R>().0) {
            for (vector, &entry) in vectors.iter_mut().zip(row) {
                vector[nth] = entry;
            }
        }
    }
    vectors
}

/// The inverse of [`side_by_side`].
#[inline(always)]
fn one_after_another<T: Element, const R: usize>(vectors: &[[Simd<T>; R]; R], kernels: &mut [T]) {
    for (nth, kernel) in kernels.chunks_exact_mut(R * R).take(LANES).enumerate() {
        for (vectors, row) in vectors.iter().zip(kernel.as_chunks_mut::<R>().0) {
            for (vector, entry) in vectors.iter().zip(row) {
                *entry = vector[nth];
            }
        }
    }
}
