//! Batch normalisation on the CPU.
//!
//! The forward pass computes statistics and then normalises. The backward pass computes gradient
//! sums and then the gradient of the input. Both steps of a pass process a block of channels while
//! the block is in the cache.

use std::ops::Range;

use candle_core::{DType, Result, Storage, Tensor, WithDType};
use rayon::prelude::*;

use super::backward_blocks::{Operands, Sums, Tensors, draw_block, gradient_lines};
use super::loops::Line;
use super::planes::Planes;
use super::statistics::Moments;
use crate::Element;
use crate::backward::record;
use crate::element::{cpu_memory, for_dtype, lock};
use crate::simd::vectorised;
use crate::zeros::zeros;

/// The constants of a batch normalisation.
#[derive(Clone, Copy)]
pub(super) struct BatchNorm {
    /// Whether the statistics are computed from the batch. If so, the gradient flows through them.
    pub(super) of_batch: bool,
    pub(super) epsilon: f64,
    pub(super) relu: bool,
}

impl BatchNorm {
    /// Normalises images by `given` moments, or by the moments of the batch. Returns the images and
    /// the moments. All tensors are contiguous.
    pub(super) fn forward(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        given: Option<Moments>,
    ) -> Result<(Storage, Moments)> {
        let planes = Planes::new(x.shape())?;
        for_dtype!(x.dtype(), "batch_norm", T => {
            let locked = lock(&[x, weight, bias]);
            let [x, weight, bias] = locked.elements::<T, 3>()?;
            let (y, of_blocks) = self.forward_blocks(&planes, x, (weight, bias), given.as_ref());
            let moments = given.unwrap_or_else(|| Moments::concatenated(of_blocks, planes.count()));
            Ok((cpu_memory(y), moments))
        })
    }

    /// Records the images `y` that [`forward`](Self::forward) has computed with these `moments`.
    pub(super) fn record(
        self,
        y: Storage,
        moments: Moments,
        inputs @ [x, weight, _]: [&Tensor; 3],
    ) -> Result<Tensor> {
        let (of_x, of_weight) = (x.clone(), weight.clone());
        record("batch_norm", y, x.shape(), inputs, move |y, dy| {
            self.backward(&of_x, &of_weight, &moments, y, dy)
        })
    }

    /// Computes the gradients of the input if needed, of the weight, and of the bias.
    fn backward(
        self,
        x: &Tensor,
        weight: &Tensor,
        moments: &Moments,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let planes = Planes::new(x.shape())?;
        let want_dx = x.track_op();
        let tensors = Tensors::new(x, self.relu.then_some(y), grad)?;
        let scales = weight.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        for_dtype!(x.dtype(), "batch_norm", T => {
            let (dx, sums) = tensors.read::<T, _>(|operands| {
                Ok(self.backward_blocks(&planes, operands, moments, &scales, want_dx))
            })?;
            let device = x.device();
            let dx = match dx {
                Some(dx) => Some(Tensor::from_vec(dx, x.shape(), device)?),
                None => None,
            };
            let parameter = |sums: Vec<f64>| {
                Tensor::from_vec(sums, planes.channels, device)?.to_dtype(weight.dtype())
            };
            Ok([dx, Some(parameter(sums.weight)?), Some(parameter(sums.bias)?)])
        })
    }

    /// Normalises block by block, and returns the moments of each block.
    fn forward_blocks<T: Element>(
        self,
        planes: &Planes,
        x: &[T],
        (weight, bias): (&[T], &[T]),
        given: Option<&Moments>,
    ) -> (Vec<T>, Vec<Moments>) {
        let mut y = zeros(x.len());
        let blocks = planes.blocks().into_par_iter().zip(planes.split_mut(&mut y));
        let moments = blocks.map(|(channels, y)| {
            vectorised(
                #[inline(always)]
                || {
                    let moments = match given {
                        Some(given) => given.block(&channels),
                        None => Moments::of_block(planes, x, &channels),
                    };
                    let (weight, bias) = (&weight[channels.clone()], &bias[channels.clone()]);
                    self.draw_block(planes, x, &channels, &moments, (weight, bias), y);
                    moments
                },
            )
        });
        let moments = moments.collect();
        (y, moments)
    }

    /// Returns the gradient of the input, if `want_dx` is set, and the sums that give the gradients
    /// of the parameters.
    fn backward_blocks<T: Element>(
        self,
        planes: &Planes,
        operands: Operands<'_, T>,
        moments: &Moments,
        weight: &[f64],
        want_dx: bool,
    ) -> (Option<Vec<T>>, Sums) {
        let mut dx = want_dx.then(|| zeros(planes.count() * planes.channels));
        let blocks = planes.blocks();
        let rooms: Vec<Option<_>> = match &mut dx {
            Some(dx) => planes.split_mut(dx).into_iter().map(Some).collect(),
            None => blocks.iter().map(|_| None).collect(),
        };
        let sums = blocks.into_par_iter().zip(rooms).map(|(channels, dx)| {
            vectorised(
                #[inline(always)]
                || {
                    let moments = moments.block(&channels);
                    let sums = Sums::of_block(planes, operands, &channels, &moments, self.epsilon);
                    if let Some(dx) = dx {
                        let through_statistics = self.of_batch.then_some(&sums);
                        let weight = &weight[channels.clone()];
                        let lines =
                            gradient_lines(&moments, weight, through_statistics, self.epsilon);
                        draw_block(planes, operands, &channels, &lines, dx);
                    }
                    sums
                },
            )
        });
        let sums = Sums::concatenated(sums.collect());
        (dx, sums)
    }

    #[inline(always)]
    fn draw_block<T: Element>(
        self,
        planes: &Planes,
        x: &[T],
        channels: &Range<usize>,
        moments: &Moments,
        (weight, bias): (&[T], &[T]),
        y: Vec<&mut [T]>,
    ) {
        let lines: Vec<Line<T>> = (0..channels.len())
            .map(|channel| {
                let scale = WithDType::to_f64(weight[channel])
                    * moments.inverse_deviation(channel, self.epsilon);
                Line::new(moments.mean[channel], scale, WithDType::to_f64(bias[channel]))
            })
            .collect();
        for (x, y) in planes.of(x, channels).zip(y) {
            let planes_of_image =
                x.chunks_exact(planes.plane).zip(y.chunks_exact_mut(planes.plane));
            for ((x, y), line) in planes_of_image.zip(&lines) {
                line.draw(self.relu, x, y);
            }
        }
    }
}
