//! Transforms of the kernels, once for all tiles.

use itertools::Itertools as _;
use rayon::prelude::*;

use super::finite::Check;
use super::{Winograd, sandwich};
use crate::Element;
use crate::kernels::memory::Scratch;
use crate::kernels::simd::{LANES, Simd, vectorised};

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Computes G·w·Gᵀ of every kernel, `[O, C, R, R]` → `[O, places, C]`, sixteen per SIMD vector.
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

    /// Computes Gᵀ·dU·G of every kernel, `[places, O, C]` → `[O, C, R, R]`. Returns which of the O
    /// · C kernels' gradients are not finite.
    pub(super) fn weight_gradients<T: Element>(
        &self,
        transformed: &[T],
        gradients: &mut [T],
    ) -> Vec<usize> {
        let (outputs, channels) = (self.geometry.out_channels, self.geometry.in_channels);
        let kernels = gradients.par_chunks_mut(channels * R * R).enumerate();
        let finished = kernels.flat_map_iter(|(output, kernels)| {
            let passes = vectorised(
                #[inline(always)]
                || {
                    let mut check = Check::new();
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
                            |row, column, vector| {
                                check.add(vector);
                                vectors[row][column] = *vector;
                            },
                        );
                        one_after_another(&vectors, kernels);
                    }
                    check.passes()
                },
            );
            let kernels = if passes { &[] } else { &*kernels };
            let not_finite = |kernel: &[T]| !kernel.iter().copied().all(T::is_finite);
            let found = kernels.chunks_exact(R * R).positions(not_finite);
            found.map(move |channel| output * channels + channel)
        });
        finished.collect()
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
