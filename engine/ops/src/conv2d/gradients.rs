//! What a backward pass is given, and what it makes.

use std::ops::Range;

use super::finish::{Finish, Signs};
use super::frame::Frame;
use super::geometry::{Geometry, Plane};
use crate::Element;
use crate::lanes::{LANES, Lane};
use crate::room::room;

/// The gradient of a convolution's finished output.
pub(super) struct Upstream<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) finish: &'a Finish,
    /// In the shape of the output.
    pub(super) grad: &'a [T],
    /// What the forward pass noted ([`Output::signs`](super::output::Output::signs)).
    pub(super) signs: &'a [Signs],
}

impl<T: Element> Upstream<'_, T> {
    /// The gradient of the sums of one channel, for one block of images: fills `sums`.
    ///
    /// To the gradient of the channel's bias, where there is one, it adds what the block adds.
    #[inline(always)]
    pub(super) fn load(
        &self,
        images: Range<usize>,
        channel: usize,
        frame: Frame,
        sums: &mut [Lane<T>],
        dbias: Option<&mut T>,
    ) {
        let channels = self.geometry.out_channels;
        let (height, width) = self.finish.size(self.geometry);
        let signs = self.finish.signs(self.geometry);
        let first = (images.start / LANES * channels + channel) * signs;
        let plane = height * width;
        let grad = images.map(|image| &self.grad[(image * channels + channel) * plane..][..plane]);
        self.finish.backward(grad, &self.signs[first..][..signs], frame, sums, dbias)
    }
}

/// Gradients with respect to a convolution's arguments, in their shapes.
pub(super) struct Gradients<T> {
    /// `None` when the input needs no gradient.
    pub(super) x: Option<Vec<T>>,
    pub(super) weight: Vec<T>,
    /// Of each channel's bias. Most convolutions of a ResNet have none, and then nothing is added up.
    pub(super) bias: Vec<Option<T>>,
}

impl<T: Element> Gradients<T> {
    /// Zeros.
    pub(super) fn new(geometry: &Geometry, want_dx: bool, has_bias: bool) -> Self {
        let Geometry { batch, out_channels, .. } = *geometry;
        Self {
            x: want_dx.then(|| room(batch * geometry.image())),
            weight: room(out_channels * geometry.patch()),
            bias: vec![has_bias.then(T::zero); out_channels],
        }
    }

    /// Takes these planes of the input's gradient, and these of the weight's `[O, C]` kernels, from other gradients.
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
