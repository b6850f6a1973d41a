//! Kernels, transformed: once for all tiles.

use rayon::prelude::*;

use super::Winograd;
use super::tile::sandwich;
use crate::ops::Element;
use crate::ops::lanes::LANES;
use crate::ops::scratch::Scratch;
use crate::ops::simd::vectorised;

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// G·w·Gᵀ of every kernel, `[O, C, R, R]` → `[O, places, C]`. Here sixteen kernels lie side by side.
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
                            let read = |row: usize, column: usize| {
                                let mut lane = [T::zero(); LANES];
                                for (entry, kernel) in
                                    lane.iter_mut().zip(kernels.chunks_exact(R * R))
                                {
                                    *entry = kernel[row * R + column];
                                }
                                lane
                            };
                            sandwich(&Self::WEIGHTS, read, |row, column, lane| {
                                let place = (row * A + column) * channels + first;
                                let room = &mut transformed[place..place + count];
                                match room.as_mut_array() {
                                    Some(room) => *room = *lane,
                                    None => room.copy_from_slice(&lane[..count]),
                                }
                            });
                        }
                    },
                );
            });
        transformed
    }

    /// Gᵀ·dU·G of every kernel, `[places, O, C]` → `[O, C, R, R]`.
    pub(super) fn weight_gradients<T: Element>(&self, transformed: &[T], gradients: &mut [T]) {
        let (outputs, channels) = (self.geometry.out_channels, self.geometry.in_channels);
        gradients.par_chunks_mut(channels * R * R).enumerate().for_each(|(output, kernels)| {
            vectorised(
                #[inline(always)]
                || {
                    for (group, kernels) in kernels.chunks_mut(LANES * R * R).enumerate() {
                        let (first, count) = (group * LANES, kernels.len() / (R * R));
                        let read = |row: usize, column: usize| {
                            let place = row * A + column;
                            let start = (place * outputs + output) * channels + first;
                            let mut lane = [T::zero(); LANES];
                            lane[..count].copy_from_slice(&transformed[start..start + count]);
                            lane
                        };
                        sandwich(&Self::WEIGHTS_BACK, read, |row, column, lane| {
                            for (kernel, &entry) in kernels.chunks_exact_mut(R * R).zip(lane) {
                                kernel[row * R + column] = entry;
                            }
                        });
                    }
                },
            );
        });
    }
}
