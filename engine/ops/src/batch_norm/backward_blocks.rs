//! The two halves of backward on the CPU, for one block of channels at a time.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};

use super::loops::{self, GradientLine};
use super::planes::Planes;
use super::statistics::Moments;
use crate::Element;
use crate::element::lock;

/// The contiguous tensors that both halves of backward read.
pub(super) struct Tensors {
    pub(super) x: Tensor,
    pub(super) output: Option<Tensor>,
    pub(super) grad: Tensor,
}

impl Tensors {
    pub(super) fn new(x: &Tensor, output: Option<&Tensor>, grad: &Tensor) -> Result<Self> {
        let output = output.map(Tensor::contiguous).transpose()?;
        Ok(Self { x: x.contiguous()?, output, grad: grad.contiguous()? })
    }

    pub(super) fn read<T: Element, R>(
        &self,
        work: impl FnOnce(Operands<'_, T>) -> Result<R>,
    ) -> Result<R> {
        // Without a relu no loop reads the output, so the gradient serves as a placeholder.
        let output = self.output.as_ref().unwrap_or(&self.grad);
        let locked = lock(&[&self.x, output, &self.grad]);
        let [x, y, grad] = locked.elements()?;
        work(Operands { x, y, grad, relu: self.output.is_some() })
    }
}

/// The elements of [`Tensors`].
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    x: &'a [T],
    y: &'a [T],
    grad: &'a [T],
    relu: bool,
}

impl<'a, T: Element> Operands<'a, T> {
    /// Iterates over the images, and returns for each image the block's elements of x, y and grad.
    #[inline(always)]
    fn of(
        self,
        planes: &Planes,
        channels: &Range<usize>,
    ) -> impl Iterator<Item = [&'a [T]; 3]> + use<'a, T> {
        let (x, y) = (planes.of(self.x, channels), planes.of(self.y, channels));
        x.zip(y).zip(planes.of(self.grad, channels)).map(|((x, y), grad)| [x, y, grad])
    }
}

/// [`GradientSums`](super::GradientSums) in plain memory, for all channels or for a block of them.
pub(super) struct Sums {
    pub(super) bias: Vec<f64>,
    pub(super) weight: Vec<f64>,
}

impl Sums {
    #[inline(always)]
    pub(super) fn of_block<T: Element>(
        planes: &Planes,
        operands: Operands<'_, T>,
        channels: &Range<usize>,
        moments: &Moments,
        epsilon: f64,
    ) -> Self {
        let mut sums = Self { bias: vec![0.0; channels.len()], weight: vec![0.0; channels.len()] };
        for operands_of_image in operands.of(planes, channels) {
            for channel in 0..channels.len() {
                let plane = channel * planes.plane..(channel + 1) * planes.plane;
                let centre = loops::centre::<T>(moments.mean[channel]);
                let plane = operands_of_image.map(|operand| &operand[plane.clone()]);
                let (grad, product) = loops::gradient_sums(operands.relu, plane, centre);
                sums.bias[channel] += grad;
                sums.weight[channel] += product;
            }
        }
        for channel in 0..channels.len() {
            let mean = moments.mean[channel];
            // The loops took the distances from the mean rounded to `T`.
            let beside = loops::beside(loops::centre::<T>(mean), mean);
            sums.weight[channel] += beside * sums.bias[channel];
            sums.weight[channel] *= moments.inverse_deviation(channel, epsilon);
        }
        sums
    }

    pub(super) fn concatenated(blocks: Vec<Self>) -> Self {
        let mut all = Self { bias: Vec::new(), weight: Vec::new() };
        for block in blocks {
            all.bias.extend(block.bias);
            all.weight.extend(block.weight);
        }
        all
    }

    pub(super) fn block(&self, channels: &Range<usize>) -> Self {
        Self {
            bias: self.bias[channels.clone()].to_vec(),
            weight: self.weight[channels.clone()].to_vec(),
        }
    }

    /// Both sums, `[2, C]`.
    pub(super) fn to_tensor(&self) -> Result<Tensor> {
        let both = [self.bias.as_slice(), &self.weight].concat();
        Tensor::from_vec(both, (2, self.bias.len()), &Device::Cpu)
    }
}

/// Builds the gradient loop of each channel of a block. `sums` is `None` when the statistics were
/// given.
pub(super) fn gradient_lines<T: Element>(
    moments: &Moments,
    weight: &[f64],
    sums: Option<&Sums>,
    epsilon: f64,
) -> Vec<GradientLine<T>> {
    let lines = weight.iter().enumerate().map(|(channel, weight)| {
        let inverse_deviation = moments.inverse_deviation(channel, epsilon);
        let slope = weight * inverse_deviation;
        let share = slope / moments.count as f64;
        let pull_and_push = sums.map(|sums| {
            (sums.weight[channel] * share * inverse_deviation, sums.bias[channel] * share)
        });
        GradientLine::new(moments.mean[channel], slope, pull_and_push)
    });
    lines.collect()
}

#[inline(always)]
pub(super) fn draw_block<T: Element>(
    planes: &Planes,
    operands: Operands<'_, T>,
    channels: &Range<usize>,
    lines: &[GradientLine<T>],
    dx: Vec<&mut [T]>,
) {
    for (operands_of_image, dx) in operands.of(planes, channels).zip(dx) {
        for ((channel, dx), line) in dx.chunks_exact_mut(planes.plane).enumerate().zip(lines) {
            let plane = channel * planes.plane..(channel + 1) * planes.plane;
            line.draw(operands.relu, operands_of_image.map(|operand| &operand[plane.clone()]), dx);
        }
    }
}
