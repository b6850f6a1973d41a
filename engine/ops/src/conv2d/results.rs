//! The results of a convolution: the output after its epilogue, and the gradients.
//!
//! The epilogue is the bias, and then possibly a relu and average pooling. It runs while a plane of the output is in the
//! cache, and stores only the means. The backward pass needs the relu mask: one bit, set where the pixel is above zero.
//!
//! ```text
//! sums (16 images deep)   + b, max(·, 0)    mean of windows     to the tensor
//! ┌──────────┐            ┌──────────┐      ┌─────┐             image 0: ┌─────┐
//! │          │   ──────►  │          │  ──► │     │   ──────►   image 1: │     │ …
//! └──────────┘            └──────────┘      └─────┘                      └─────┘
//!                          └► above zero?  the relu mask for the backward pass
//! ```

use std::ops::Range;

use rayon::prelude::*;

use super::geometry::Geometry;
use super::padded_plane::{PaddedPlane, by_channel};
use crate::Element;
use crate::backward::Wanted;
use crate::kernels::memory::{Scratch, zeros};
use crate::kernels::simd::{LANES, Simd, add, scale, vectors_mut};
use crate::kernels::windows::Windows;
use crate::relu::rectified;

/// The relu mask of eight neighbouring pixels: one byte per image, with one bit per pixel.
pub(super) type ReluMask = [u8; LANES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epilogue {
    /// Adds the bias, if there is one.
    Plain,
    /// Adds the bias, applies the relu, and averages over the windows.
    ReluPool(Windows),
}

impl Epilogue {
    /// Returns the rows and columns of a plane after the epilogue.
    pub(super) fn size(&self, geometry: &Geometry) -> (usize, usize) {
        match self {
            Self::Plain => (geometry.out_h, geometry.out_w),
            Self::ReluPool(windows) => (windows.out_height, windows.out_width),
        }
    }

    /// Returns the number of [`ReluMask`]s of one plane.
    fn mask_len(&self, geometry: &Geometry) -> usize {
        match self {
            Self::Plain => 0,
            Self::ReluPool(_) => geometry.pixels().div_ceil(8),
        }
    }
}

/// The result of a forward pass.
pub(super) struct Output<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) epilogue: &'a Epilogue,
    pub(super) bias: Option<&'a [T]>,
    /// The output after the epilogue, `[B, O, H', W']`.
    pub(super) y: Vec<T>,
    /// The relu mask of each block and channel, if the epilogue has a relu.
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
    y: Vec<&'a mut [T]>,
    relu_mask: &'a mut [ReluMask],
}

impl<'a, T: Element> Output<'a, T> {
    pub(super) fn new(
        geometry: &'a Geometry,
        epilogue: &'a Epilogue,
        bias: Option<&'a [T]>,
    ) -> Self {
        let (height, width) = epilogue.size(geometry);
        let y = zeros(geometry.batch * geometry.out_channels * height * width);
        let blocks = geometry.batch.div_ceil(LANES);
        let masks = blocks * geometry.out_channels * epilogue.mask_len(geometry);
        Self { geometry, epilogue, bias, y, relu_masks: vec![[0; LANES]; masks] }
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
        let planes = by_channel(y, channels, height * width).into_iter().enumerate();
        let planes = planes.map(|(nth, y)| {
            let (block, channel) = (nth / channels, nth % channels);
            let relu_mask = masks.split_off_mut(..mask_len).expect("a mask for each plane");
            let bias = bias.map(|bias| bias[channel]);
            OutputPlanes { epilogue, bias, block, channel, y, relu_mask }
        });
        planes.collect::<Vec<_>>().into_par_iter()
    }

    /// Copies the planes of NaN alone from another result of the same convolution.
    pub(super) fn replace_nan(&mut self, other: &Self) {
        let (height, width) = self.epilogue.size(self.geometry);
        let channels = self.geometry.out_channels;
        let mask_len = self.epilogue.mask_len(self.geometry);
        for nth in replace_nan(&mut self.y, &other.y, height * width) {
            let (image, channel) = (nth / channels, nth % channels);
            let first = (image / LANES * channels + channel) * mask_len;
            let masks = self.relu_masks[first..].iter_mut().zip(&other.relu_masks[first..]);
            for (mask, other) in masks.take(mask_len) {
                mask[image % LANES] = other[image % LANES];
            }
        }
    }
}

/// Copies the runs of `len` numbers that are NaN alone from other results, and returns their places.
pub(super) fn replace_nan<T: Element>(results: &mut [T], others: &[T], len: usize) -> Vec<usize> {
    let runs = results.chunks_exact_mut(len).zip(others.chunks_exact(len)).enumerate();
    let replaced = runs.filter(|(_, (run, _))| run.iter().all(|number| number.is_nan()));
    let replaced = replaced.map(|(place, (run, other))| {
        run.copy_from_slice(other);
        place
    });
    replaced.collect()
}

impl<T: Element> OutputPlanes<'_, T> {
    /// Applies the epilogue to a plane of sums, in the upper left part of the padded plane, and
    /// writes one plane of the output for each image, and the plane's relu mask.
    #[inline(always)]
    pub(super) fn apply_epilogue(&mut self, sums: &mut [Simd<T>], padded: PaddedPlane) {
        let zero = T::zero();
        let rows = sums.chunks_exact_mut(padded.outer_width).take(padded.height);
        let rows = rows.map(|row| &mut row[..padded.width]);
        let Epilogue::ReluPool(windows) = self.epilogue else {
            if let Some(bias) = self.bias {
                for row in rows {
                    row.as_flattened_mut().iter_mut().for_each(|value| *value += bias);
                }
            }
            padded.store(sums, &mut self.y);
            return;
        };
        let bias = self.bias.unwrap_or(zero);
        let mut positive = eights(padded);
        let positive = vectors_mut(&mut positive);
        positive[padded.inner()..].fill([false; LANES]);
        for (row, positive) in rows.zip(positive.chunks_exact_mut(padded.width)) {
            let values = row.as_flattened_mut().iter_mut();
            for (value, positive) in values.zip(positive.as_flattened_mut()) {
                *value = rectified(*value + bias);
                *positive = *value != zero;
            }
        }
        for (mask, eight) in self.relu_mask.iter_mut().zip(positive.as_chunks::<8>().0) {
            let mut bits = [0; LANES];
            for pixel in eight.iter().rev() {
                for lane in 0..LANES {
                    bits[lane] = bits[lane] << 1 | u8::from(pixel[lane]);
                }
            }
            *mask = bits;
        }
        let share = windows.share::<T>();
        let mut means = Scratch::new(windows.out_plane() * LANES);
        let means = vectors_mut(&mut means);
        windows.for_each(
            padded.outer_width,
            #[inline(always)]
            |out, first| {
                let mut sum = [zero; LANES];
                for row in sums[first..].chunks(padded.outer_width).take(windows.kernel) {
                    for pixel in &row[..windows.kernel] {
                        sum = add(sum, *pixel);
                    }
                }
                means[out] = scale(sum, share);
            },
        );
        PaddedPlane::unpadded(windows.out_height, windows.out_width).store(means, &mut self.y);
    }
}

/// Borrows memory for a bool per pixel and image, for a multiple of 8 pixels.
fn eights(padded: PaddedPlane) -> Scratch<bool> {
    Scratch::new(padded.inner().next_multiple_of(8) * LANES)
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
    /// Fills `sums` with the gradient of a channel's sums, for a block of images, and with zeros outside of the plane. Adds the
    /// block's share to the gradient `dbias` of the bias, if there is one.
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
        let (block, plane) = (images.start / LANES, height * width);
        let grad = images.map(|image| &self.grad[(image * channels + channel) * plane..][..plane]);
        match self.epilogue {
            Epilogue::Plain => padded.load(grad, sums),
            Epilogue::ReluPool(windows) => {
                let share = windows.share::<T>();
                let mut means = Scratch::new(windows.out_plane() * LANES);
                let means = vectors_mut(&mut means);
                PaddedPlane::unpadded(height, width).load(grad, means);
                sums.fill([T::zero(); LANES]);
                windows.for_each(
                    padded.outer_width,
                    #[inline(always)]
                    |out, first| {
                        let grad = scale(means[out], share);
                        for row in sums[first..].chunks_mut(padded.outer_width).take(windows.kernel)
                        {
                            for pixel in &mut row[..windows.kernel] {
                                *pixel = add(*pixel, grad);
                            }
                        }
                    },
                );
                let mut positive = eights(padded);
                let positive = vectors_mut(&mut positive);
                let mask_len = self.epilogue.mask_len(self.geometry);
                let masks = &self.relu_masks[(block * channels + channel) * mask_len..];
                for (mask, eight) in masks.iter().zip(positive.as_chunks_mut::<8>().0) {
                    let mut pixels = [[false; LANES]; 8];
                    for (place, pixel) in pixels.iter_mut().enumerate() {
                        for lane in 0..LANES {
                            pixel[lane] = mask[lane] >> place & 1 != 0;
                        }
                    }
                    *eight = pixels;
                }
                padded.keep(sums, positive);
            }
        }
        if let Some(dbias) = dbias {
            let mut total = [T::zero(); LANES];
            for pixel in sums.iter() {
                total = add(total, *pixel);
            }
            *dbias += total.into_iter().sum();
        }
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
}
