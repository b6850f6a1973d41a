//! Strided 1×1 convolution, as in the short cut of a residual block with smaller output planes.
//!
//! The kernel reads only one pixel in stride². An im2col convolution would interleave all pixels,
//! and convert the gradient of all pixels back. This module first gathers the pixels that the
//! kernel reads. The rest is a convolution of stride 1:
//!
//! ```text
//! a · b · c
//! · · · · ·      →     a b c     of stride 1
//! d · e · f            d e f
//! ```
//!
//! The backward pass scatters the gradient to the gathered pixels. All other pixels have gradient
//! zero.
//!
//! The cost is the cost of the smaller convolution, plus a copy of the gathered pixels.

use std::mem::take;

use rayon::prelude::*;

use super::geometry::Geometry;
use super::gradients::{Gradients, Upstream};
use super::output::Output;
use super::unfolded::Unfolded;
use crate::room::room;
use crate::{BLOCK, Element};

/// A strided 1×1 convolution.
pub(super) struct Sampled<'a> {
    geometry: &'a Geometry,
    /// The sizes of the convolution of stride 1.
    dense: Geometry,
}

impl<'a> Sampled<'a> {
    /// Whether this algorithm can compute a convolution.
    pub(super) fn suits(g: &Geometry) -> bool {
        (g.kernel_h, g.kernel_w, g.padding) == (1, 1, 0) && g.stride > 1
    }

    pub(super) fn new(geometry: &'a Geometry) -> Self {
        let Geometry { out_h, out_w, .. } = *geometry;
        Self { geometry, dense: Geometry { height: out_h, width: out_w, stride: 1, ..*geometry } }
    }

    /// Convolves the batch `x`, applies the epilogue and writes `output`.
    pub(super) fn forward<T: Element>(&self, x: &[T], weight: &[T], output: &mut Output<'_, T>) {
        Unfolded::new(&self.dense).forward(&self.taken(x), weight, output);
    }

    /// Computes the gradients for the batch `x`.
    pub(super) fn backward<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        upstream: &Upstream<'_, T>,
        gradients: &mut Gradients<T>,
    ) {
        let mut of_taken = Gradients {
            x: gradients.x.as_ref().map(|_| room(self.dense.batch * self.dense.image())),
            weight: take(&mut gradients.weight),
            bias: take(&mut gradients.bias),
        };
        let unfolded = Unfolded::new(&self.dense);
        unfolded.backward(&self.taken(x), weight, upstream, &mut of_taken);
        if let (Some(dx), Some(taken)) = (&mut gradients.x, &of_taken.x) {
            self.give_back(taken, dx);
        }
        (gradients.weight, gradients.bias) = (of_taken.weight, of_taken.bias);
    }

    /// Gathers the pixels of `x` that the kernel reads. They are a whole batch, so their memory is
    /// freed after use and is not kept as scratch memory.
    fn taken<T: Element>(&self, x: &[T]) -> Vec<T> {
        let Geometry { stride, height, width, .. } = *self.geometry;
        let mut taken = room(self.dense.batch * self.dense.image());
        let planes = taken.par_chunks_mut(self.dense.pixels()).zip(x.par_chunks(height * width));
        planes.with_min_len(BLOCK / (height * width)).for_each(|(taken, plane)| {
            let rows = plane.chunks(stride * width);
            for (taken, row) in taken.chunks_exact_mut(self.dense.width).zip(rows) {
                for (taken, pixel) in taken.iter_mut().zip(row.iter().step_by(stride)) {
                    *taken = *pixel;
                }
            }
        });
        taken
    }

    /// Scatters the gradients of the gathered pixels to `dx`.
    fn give_back<T: Element>(&self, taken: &[T], dx: &mut [T]) {
        let Geometry { stride, height, width, .. } = *self.geometry;
        let planes = dx.par_chunks_mut(height * width).zip(taken.par_chunks(self.dense.pixels()));
        planes.with_min_len(BLOCK / (height * width)).for_each(|(plane, taken)| {
            let rows = plane.chunks_mut(stride * width);
            for (row, taken) in rows.zip(taken.chunks_exact(self.dense.width)) {
                for (pixel, taken) in row.iter_mut().step_by(stride).zip(taken) {
                    *pixel = *taken;
                }
            }
        });
    }
}
