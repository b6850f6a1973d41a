//! Operands and results of a backward pass.

use std::ops::Range;

use super::epilogue::{Epilogue, ReluMask};
use super::geometry::{Geometry, Plane};
use super::padded_plane::PaddedPlane;
use crate::Element;
use crate::simd::{LANES, Simd};
use crate::zeros::zeros;

/// The gradient of a convolution's output after the epilogue.
pub(super) struct Upstream<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) epilogue: &'a Epilogue,
    /// The gradient, in the shape of the output.
    pub(super) grad: &'a [T],
    /// The relu masks of the forward pass ([`Output::relu_masks`](super::output::Output::relu_masks)).
    pub(super) relu_masks: &'a [ReluMask],
}

impl<T: Element> Upstream<'_, T> {
    /// Fills `sums` with the gradient of one channel's sums, for one block of images.
    ///
    /// If the channel has a bias, the function also adds the block's share to the bias gradient.
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
    pub(super) weight: Vec<T>,
    /// The gradient of each channel's bias. Most convolutions of a ResNet have no bias, and nothing
    /// is added up for them.
    pub(super) bias: Vec<Option<T>>,
}

impl<T: Element> Gradients<T> {
    /// Makes gradients of zeros.
    pub(super) fn new(geometry: &Geometry, want_dx: bool, has_bias: bool) -> Self {
        let Geometry { batch, out_channels, .. } = *geometry;
        Self {
            x: want_dx.then(|| zeros(batch * geometry.image())),
            weight: zeros(out_channels * geometry.patch()),
            bias: vec![has_bias.then(T::zero); out_channels],
        }
    }

    /// Copies these planes of the input's gradient and these `[O, C]` kernels of the weight's
    /// gradient from `other`.
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
        for kernel in kernels {
            let start = kernel * size;
            self.weight[start..][..size].copy_from_slice(&other.weight[start..][..size]);
        }
    }
}
