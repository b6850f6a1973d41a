//! Batch normalisation as one operation.
//!
//! The forward pass computes statistics and then normalises. The backward pass computes gradient
//! sums and then the gradient of the input. Both steps of a pass process a block of channels while
//! the block is in the cache.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, WithDType, bail};
use rayon::prelude::*;

use super::backward_blocks::{Operands, Sums, Tensors, draw_block, gradient_lines};
use super::loops::Line;
use super::planes::Planes;
use super::statistics::Moments;
use crate::Element;
use crate::element::{cpu_elements, for_dtype};
use crate::room::room;
use crate::simd::vectorised;

/// One application of batch normalisation. It keeps the statistics of the forward pass for the
/// backward pass.
pub(super) struct BatchNorm {
    pub(super) moments: Arc<OnceLock<Moments>>,
    /// Whether the statistics are computed from the batch. If so, the gradient flows through them.
    pub(super) of_batch: bool,
    pub(super) epsilon: f64,
    pub(super) relu: bool,
}

pub(super) fn saved(moments: &OnceLock<Moments>) -> Result<&Moments> {
    match moments.get() {
        Some(moments) => Ok(moments),
        None => bail!("batch_norm: no statistics, because forward did not run"),
    }
}

impl BatchNorm {
    fn forward<T: Element>(
        &self,
        planes: &Planes,
        x: &[T],
        weight: &[T],
        bias: &[T],
    ) -> (Vec<T>, Moments) {
        let mut y = room(x.len());
        let blocks = planes.blocks().into_par_iter().zip(planes.split_mut(&mut y));
        let moments = blocks.map(|(channels, y)| {
            vectorised(
                #[inline(always)]
                || {
                    let moments = match self.moments.get() {
                        Some(given) => given.block(&channels),
                        None => Moments::of_block(planes, x, &channels),
                    };
                    let (weight, bias) = (&weight[channels.clone()], &bias[channels.clone()]);
                    self.draw_block(planes, x, &channels, &moments, (weight, bias), y);
                    moments
                },
            )
        });
        let moments = Moments::concatenated(moments.collect(), planes.count());
        (y, moments)
    }

    /// Returns the gradient of the input, if `want_dx` is set, and the sums that give the gradients
    /// of the parameters.
    fn backward<T: Element>(
        &self,
        planes: &Planes,
        operands: Operands<'_, T>,
        moments: &Moments,
        weight: &[f64],
        want_dx: bool,
    ) -> (Option<Vec<T>>, Sums) {
        let mut dx = want_dx.then(|| room(planes.count() * planes.channels));
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
        &self,
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

impl CustomOp3 for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let planes = Planes::new(x_layout.shape())?;
        for_dtype!(x.dtype(), self.name(), T => {
            let (y, moments) = self.forward::<T>(
                &planes,
                cpu_elements(x, x_layout)?,
                cpu_elements(weight, weight_layout)?,
                cpu_elements(bias, bias_layout)?,
            );
            self.moments.get_or_init(|| moments);
            Ok((T::to_cpu_storage_owned(y), x_layout.shape().clone()))
        })
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _bias: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let planes = Planes::new(x.shape())?;
        let moments = saved(&self.moments)?;
        let want_dx = x.track_op();
        let tensors = Tensors::new(x, self.relu.then_some(y), grad)?;
        let scales = weight.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        for_dtype!(x.dtype(), self.name(), T => {
            let (dx, sums) = tensors.read::<T, _>(|operands| {
                Ok(self.backward(&planes, operands, moments, &scales, want_dx))
            })?;
            let device = x.device();
            let dx = match dx {
                Some(dx) => Some(Tensor::from_vec(dx, x.shape(), device)?),
                None => None,
            };
            let parameter = |sums: Vec<f64>| {
                Tensor::from_vec(sums, planes.channels, device)?.to_dtype(weight.dtype())
            };
            Ok((dx, Some(parameter(sums.weight)?), Some(parameter(sums.bias)?)))
        })
    }
}
