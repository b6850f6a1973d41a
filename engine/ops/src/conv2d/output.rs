//! The memory of a convolution's output.

use std::ops::Range;

use rayon::prelude::*;

use super::epilogue::{Epilogue, ReluMask};
use super::geometry::{Geometry, Plane};
use super::padded_plane::{PaddedPlane, by_channel};
use crate::Element;
use crate::simd::{LANES, Simd};
use crate::zeros::zeros;

/// The result of a forward pass.
pub(super) struct Output<'a, T> {
    geometry: &'a Geometry,
    epilogue: &'a Epilogue,
    bias: Option<&'a [T]>,
    /// The output after the epilogue, `[B, O, H', W']`.
    pub(super) y: Vec<T>,
    /// The relu mask of each block and channel: where the sums were above zero, as far as the
    /// epilogue needs the mask.
    pub(super) relu_masks: Vec<ReluMask>,
}

/// One channel of a block of images, before the epilogue.
pub(super) struct OutputPlanes<'a, T> {
    epilogue: &'a Epilogue,
    bias: Option<T>,
    /// The index of the block in its run.
    pub(super) block: usize,
    pub(super) channel: usize,
    y: Vec<&'a mut [T]>,
    relu_mask: &'a mut [ReluMask],
}

impl<T: Element> OutputPlanes<'_, T> {
    /// Returns the number of images in the block.
    pub(super) fn images(&self) -> usize {
        self.y.len()
    }

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

    /// Allocates another result of the same convolution.
    pub(super) fn another(&self) -> Self {
        Self::new(self.geometry, self.epilogue, self.bias)
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

    /// Returns the planes of a run of images, for epilogues in parallel. The run begins with a
    /// block.
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

/// Divides a batch into runs of whole blocks, about `images` long.
pub(super) fn runs(batch: usize, images: usize) -> impl Iterator<Item = Range<usize>> {
    let step = images.next_multiple_of(LANES);
    (0..batch).step_by(step).map(move |start| start..batch.min(start + step))
}
