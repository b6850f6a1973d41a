//! The memory of a convolution's output.

use std::ops::Range;

use rayon::prelude::*;

use super::finish::{Finish, Signs};
use super::frame::{Frame, by_channel};
use super::geometry::{Geometry, Plane};
use crate::Element;
use crate::lanes::{LANES, Lane};
use crate::room::room;

/// The result of a forward pass.
pub(super) struct Output<'a, T> {
    geometry: &'a Geometry,
    finish: &'a Finish,
    bias: Option<&'a [T]>,
    /// The output after the epilogue, `[B, O, H', W']`.
    pub(super) y: Vec<T>,
    /// The relu mask of each block and channel: where the sums were above zero, as far as the
    /// epilogue needs the mask.
    pub(super) signs: Vec<Signs>,
}

/// One channel of a block of images, before the epilogue.
pub(super) struct Unfinished<'a, T> {
    finish: &'a Finish,
    bias: Option<T>,
    /// The index of the block in its run.
    pub(super) block: usize,
    pub(super) channel: usize,
    y: Vec<&'a mut [T]>,
    signs: &'a mut [Signs],
}

impl<T: Element> Unfinished<'_, T> {
    /// Returns the number of images in the block.
    pub(super) fn images(&self) -> usize {
        self.y.len()
    }

    /// Runs the epilogue on a plane of sums, which lie in the upper left of the padded plane
    /// `frame`.
    #[inline(always)]
    pub(super) fn finish(&mut self, sums: &mut [Lane<T>], frame: Frame) {
        self.finish.forward(self.bias, sums, frame, self.signs, &mut self.y);
    }
}

impl<'a, T: Element> Output<'a, T> {
    pub(super) fn new(geometry: &'a Geometry, finish: &'a Finish, bias: Option<&'a [T]>) -> Self {
        let (height, width) = finish.size(geometry);
        let planes = geometry.batch * geometry.out_channels;
        let blocks = geometry.batch.div_ceil(LANES);
        let signs = blocks * geometry.out_channels * finish.signs(geometry);
        let y = room(planes * height * width);
        Self { geometry, finish, bias, y, signs: vec![[0; LANES]; signs] }
    }

    /// Allocates another result of the same convolution.
    pub(super) fn another(&self) -> Self {
        Self::new(self.geometry, self.finish, self.bias)
    }

    /// Copies these planes from another result of the same convolution.
    pub(super) fn take(&mut self, other: &Self, planes: &[Plane]) {
        let (height, width) = self.finish.size(self.geometry);
        let (channels, size) = (self.geometry.out_channels, height * width);
        let signs = self.finish.signs(self.geometry);
        for &Plane { image, channel } in planes {
            let start = (image * channels + channel) * size;
            self.y[start..][..size].copy_from_slice(&other.y[start..][..size]);
            let (block, lane) = (image / LANES, image % LANES);
            let start = (block * channels + channel) * signs;
            for (signs, other) in
                self.signs[start..].iter_mut().zip(&other.signs[start..]).take(signs)
            {
                signs[lane] = other[lane];
            }
        }
    }

    /// Returns the planes of a run of images, for epilogues in parallel. The run begins with a
    /// block.
    pub(super) fn planes(
        &mut self,
        images: Range<usize>,
    ) -> impl ParallelIterator<Item = Unfinished<'_, T>> {
        let Self { geometry, finish, bias, y, signs: all_signs } = self;
        let (channels, signs) = (geometry.out_channels, finish.signs(geometry));
        let (height, width) = finish.size(geometry);
        let image = channels * height * width;
        let y = &mut y[images.start * image..images.end * image];
        let mut all_signs = &mut all_signs[images.start / LANES * channels * signs..];
        let mut planes = Vec::with_capacity(images.len().div_ceil(LANES) * channels);
        for (block, y) in y.chunks_mut(LANES * image).enumerate() {
            for (channel, y) in by_channel(y, channels, height * width).into_iter().enumerate() {
                let (mine, rest) = all_signs.split_at_mut(signs);
                all_signs = rest;
                let bias = bias.map(|bias| bias[channel]);
                planes.push(Unfinished { finish, bias, block, channel, y, signs: mine });
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
