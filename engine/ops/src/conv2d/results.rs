//! The output of a forward pass, the gradient of the output, and the gradients of a backward pass.

use std::ops::Range;

use rayon::prelude::*;

use super::epilogue::{Epilogue, ReluMask};
use super::geometry::{Geometry, Plane};
use super::padded_plane::{PaddedPlane, by_channel};
use crate::Element;
use crate::backward::Wanted;
use crate::kernels::memory::zeros;
use crate::kernels::simd::{LANES, Simd};

/// The result of a forward pass.
pub(super) struct Output<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) epilogue: &'a Epilogue,
    pub(super) bias: Option<&'a [T]>,
    /// The output after the epilogue, `[B, O, H', W']`.
    pub(super) y: Vec<T>,
    /// The relu mask of each block and channel, if the epilogue needs masks.
    pub(super) relu_masks: Vec<ReluMask>,
}

/// One channel of a block of images, before the epilogue.
pub(super) struct OutputPlanes<'a, T> {
    epilogue: &'a Epilogue,
    bias: Option<T>,
    /// The index of the block in its run.
    pub(super) block: usize,
    pub(super) channel: usize,
    /// The output of each image of the block.
    pub(super) y: Vec<&'a mut [T]>,
    relu_mask: &'a mut [ReluMask],
}

impl<T: Element> OutputPlanes<'_, T> {
    /// Runs the epilogue on a plane of sums, which lie in the upper left of a padded plane.
    #[inline(always)]
    pub(super) fn apply_epilogue(&mut self, sums: &mut [Simd<T>], padded: PaddedPlane) {
        self.epilogue.forward(self.bias, sums, padded, self.relu_mask, &mut self.y);
    }
}

impl<'a, T: Element> Output<'a, T> {
    pub(super) fn new(
        geometry: &'a Geometry,
        epilogue: &'a Epilogue,
        bias: Option<&'a [T]>,
    ) -> Self {
        let (height, width) = epilogue.size(geometry);
        let planes = geometry.batch * geometry.out_channels;
        let blocks = geometry.batch.div_ceil(LANES);
        let masks = blocks * geometry.out_channels * epilogue.mask_len(geometry);
        let y = zeros(planes * height * width);
        Self { geometry, epilogue, bias, y, relu_masks: vec![[0; LANES]; masks] }
    }

    /// Copies these planes from another result of the same convolution.
    pub(super) fn take(&mut self, other: &Self, planes: &[Plane]) {
        let (height, width) = self.epilogue.size(self.geometry);
        let (channels, size) = (self.geometry.out_channels, height * width);
        let mask_len = self.epilogue.mask_len(self.geometry);
        for &Plane { image, channel } in planes {
            let start = (image * channels + channel) * size;
            self.y[start..][..size].copy_from_slice(&other.y[start..][..size]);
            let (block, lane) = (image / LANES, image % LANES);
            let start = (block * channels + channel) * mask_len;
            let masks = self.relu_masks[start..].iter_mut().zip(&other.relu_masks[start..]);
            for (mask, other) in masks.take(mask_len) {
                mask[lane] = other[lane];
            }
        }
    }

    /// Returns the planes of a run of images, which begins with a block, for parallel epilogues.
    pub(super) fn planes(
        &mut self,
        images: Range<usize>,
    ) -> impl ParallelIterator<Item = OutputPlanes<'_, T>> {
        let Self { geometry, epilogue, bias, y, relu_masks } = self;
        let (channels, mask_len) = (geometry.out_channels, epilogue.mask_len(geometry));
        let (height, width) = epilogue.size(geometry);
        let image = channels * height * width;
        let y = &mut y[images.start * image..images.end * image];
        let mut masks = &mut relu_masks[images.start / LANES * channels * mask_len..];
        let mut planes = Vec::with_capacity(images.len().div_ceil(LANES) * channels);
        for (block, y) in y.chunks_mut(LANES * image).enumerate() {
            for (channel, y) in by_channel(y, channels, height * width).into_iter().enumerate() {
                let (relu_mask, rest) = masks.split_at_mut(mask_len);
                masks = rest;
                let bias = bias.map(|bias| bias[channel]);
                planes.push(OutputPlanes { epilogue, bias, block, channel, y, relu_mask });
            }
        }
        planes.into_par_iter()
    }
}

/// The gradient of a convolution's output after the epilogue.
pub(super) struct Upstream<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) epilogue: &'a Epilogue,
    /// The gradient, in the shape of the output.
    pub(super) grad: &'a [T],
    /// The relu masks of the forward pass ([`Output::relu_masks`]).
    pub(super) relu_masks: &'a [ReluMask],
}

impl<T: Element> Upstream<'_, T> {
    /// Fills `sums` with the gradient of one channel's sums, for one block of images, and adds the
    /// block's share to the bias gradient, if there is one.
    #[inline(always)]
    pub(super) fn load(
        &self,
        images: Range<usize>,
        channel: usize,
        padded: PaddedPlane,
        sums: &mut [Simd<T>],
        dbias: Option<&mut T>,
    ) {
        let channels = self.geometry.out_channels;
        let (height, width) = self.epilogue.size(self.geometry);
        let mask_len = self.epilogue.mask_len(self.geometry);
        let first = (images.start / LANES * channels + channel) * mask_len;
        let plane = height * width;
        let grad = images.map(|image| &self.grad[(image * channels + channel) * plane..][..plane]);
        self.epilogue.backward(grad, &self.relu_masks[first..][..mask_len], padded, sums, dbias)
    }
}

/// Gradients with respect to a convolution's arguments, in the arguments' shapes.
pub(super) struct Gradients<T> {
    /// The gradient of the input, or `None` when the input needs no gradient.
    pub(super) x: Option<Vec<T>>,
    /// The gradient of the weight, or `None` in the first half of a backward pass.
    pub(super) weight: Option<Vec<T>>,
    /// The gradient of each channel's bias. Most convolutions of a ResNet have no bias.
    pub(super) bias: Vec<Option<T>>,
}

impl<T: Element> Gradients<T> {
    /// Makes gradients of zeros, those that are wanted.
    pub(super) fn new(geometry: &Geometry, wanted: Wanted, has_bias: bool) -> Self {
        let (Wanted { input, weights }, channels) = (wanted, geometry.out_channels);
        Self {
            x: input.then(|| zeros(geometry.batch * geometry.image())),
            weight: weights.then(|| zeros(channels * geometry.patch())),
            bias: vec![(weights && has_bias).then(T::zero); channels],
        }
    }

    /// Copies these planes of the input's gradient and `[O, C]` kernels of the weight's from `other`.
    pub(super) fn take(
        &mut self,
        geometry: &Geometry,
        other: &Self,
        planes: &[Plane],
        kernels: &[usize],
    ) {
        let size = geometry.height * geometry.width;
        if let (Some(dx), Some(other)) = (&mut self.x, &other.x) {
            for &Plane { image, channel } in planes {
                let start = (image * geometry.in_channels + channel) * size;
                dx[start..][..size].copy_from_slice(&other[start..][..size]);
            }
        }
        let size = geometry.kernel_h * geometry.kernel_w;
        if let (Some(dweight), Some(other)) = (&mut self.weight, &other.weight) {
            for kernel in kernels {
                let start = kernel * size;
                dweight[start..][..size].copy_from_slice(&other[start..][..size]);
            }
        }
    }
}
