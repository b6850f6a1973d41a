//! Transforms of the kernels, once for all tiles.

use itertools::Itertools as _;
use rayon::prelude::*;

use super::Winograd;
use super::finite::Check;
use super::tile::sandwich;
use crate::Element;
use crate::lanes::{LANES, Lane};
use crate::scratch::Scratch;
use crate::simd::vectorised;

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Computes G·w·Gᵀ of every kernel, `[O, C, R, R]` → `[O, places, C]`. A SIMD vector holds
    /// sixteen kernels.
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
                            let lanes = side_by_side::<T, R>(kernels);
                            sandwich(
                                &Self::WEIGHTS,
                                #[inline(always)]
                                |row, column| lanes[row][column],
                                #[inline(always)]
                                |row, column, lane| {
                                    let place = (row * A + column) * channels + first;
                                    let room = &mut transformed[place..place + count];
                                    match room.as_mut_array() {
                                        Some(room) => *room = *lane,
                                        None => room.copy_from_slice(&lane[..count]),
                                    }
                                },
                            );
                        }
                    },
                );
            });
        transformed
    }

    /// Computes Gᵀ·dU·G of every kernel, `[places, O, C]` → `[O, C, R, R]`.
    ///
    /// Returns which of the O · C kernels' gradients are not finite.
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
                        let mut lanes = [[[T::zero(); LANES]; R]; R];
                        sandwich(
                            &Self::WEIGHTS_BACK,
                            #[inline(always)]
                            |row, column| {
                                let place = row * A + column;
                                let start = (place * outputs + output) * channels + first;
                                let from = &transformed[start..start + count];
                                match from.as_array() {
                                    Some(lane) => *lane,
                                    None => {
                                        let mut lane = [T::zero(); LANES];
                                        lane[..count].copy_from_slice(from);
                                        lane
                                    }
                                }
                            },
                            #[inline(always)]
                            |row, column, lane| {
                                check.add(lane);
                                lanes[row][column] = *lane;
                            },
                        );
                        one_after_another(&lanes, kernels);
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

/// Puts sixteen kernels side by side, or fewer kernels and zeros.
///
/// The function writes all kernels before anything is read. A SIMD vector that is read right after
/// its sixteen numbers were written one by one waits until the writes have completed.
#[inline(always)]
fn side_by_side<T: Element, const R: usize>(kernels: &[T]) -> [[Lane<T>; R]; R] {
    let mut lanes = [[[T::zero(); LANES]; R]; R];
    for (nth, kernel) in kernels.chunks_exact(R * R).take(LANES).enumerate() {
        for (lanes, row) in lanes.iter_mut().zip(kernel.as_chunks::<R>().0) {
            for (lane, &entry) in lanes.iter_mut().zip(row) {
                lane[nth] = entry;
            }
        }
    }
    lanes
}

/// The inverse of [`side_by_side`].
#[inline(always)]
fn one_after_another<T: Element, const R: usize>(lanes: &[[Lane<T>; R]; R], kernels: &mut [T]) {
    for (nth, kernel) in kernels.chunks_exact_mut(R * R).take(LANES).enumerate() {
        for (lanes, row) in lanes.iter().zip(kernel.as_chunks_mut::<R>().0) {
            for (lane, entry) in lanes.iter().zip(row) {
                *entry = lane[nth];
            }
        }
    }
}
