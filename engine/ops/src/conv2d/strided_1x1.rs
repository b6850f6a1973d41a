//! Strided 1×1 convolution, as in the shortcut of a residual block with smaller output planes.
//!
//! The kernel reads only one pixel in stride², and an im2col convolution would interleave all pixels. This module first
//! gathers the pixels that the kernel reads. The rest is a convolution of stride 1:
//!
//! ```text
//! a · b · c
//! · · · · ·      →     a b c     of stride 1
//! d · e · f            d e f
//! ```
//!
//! The backward pass scatters the gradient to the gathered pixels. All other pixels have gradient zero.

use std::mem::take;

use rayon::prelude::*;

use super::geometry::Geometry;
use super::im2col::Im2col;
use super::results::{Gradients, Output, Upstream};
use crate::kernels::memory::zeros;
use crate::{BLOCK, Element};

pub(super) struct Strided1x1<'a> {
    geometry: &'a Geometry,
    /// The sizes of the convolution of stride 1.
    dense: Geometry,
}

impl<'a> Strided1x1<'a> {
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
        Im2col(&self.dense).forward(&self.gather(x), weight, output);
    }

    /// Computes the gradients for the batch `x`.
    pub(super) fn backward<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        upstream: &Upstream<'_, T>,
        gradients: &mut Gradients<T>,
    ) {
        let mut of_gathered = Gradients {
            x: gradients.x.as_ref().map(|_| zeros(self.dense.batch * self.dense.image())),
            weight: take(&mut gradients.weight),
            bias: take(&mut gradients.bias),
        };
        let im2col = Im2col(&self.dense);
        im2col.backward(&self.gather(x), weight, upstream, &mut of_gathered);
        if let (Some(dx), Some(gathered)) = (&mut gradients.x, &of_gathered.x) {
            self.scatter(gathered, dx);
        }
        (gradients.weight, gradients.bias) = (of_gathered.weight, of_gathered.bias);
    }

    /// Gathers the pixels of `x` that the kernel reads, of a whole batch: too many for scratch memory.
    fn gather<T: Element>(&self, x: &[T]) -> Vec<T> {
        let Geometry { stride, height, width, .. } = *self.geometry;
        let mut gathered = zeros(self.dense.batch * self.dense.image());
        let planes = gathered.par_chunks_mut(self.dense.pixels()).zip(x.par_chunks(height * width));
        planes.with_min_len(BLOCK / (height * width)).for_each(|(gathered, plane)| {
            let rows = plane.chunks(stride * width);
            for (gathered, row) in gathered.chunks_exact_mut(self.dense.width).zip(rows) {
                for (gathered, pixel) in gathered.iter_mut().zip(row.iter().step_by(stride)) {
                    *gathered = *pixel;
                }
            }
        });
        gathered
    }

    /// Scatters the gradients of the gathered pixels to `dx`.
    fn scatter<T: Element>(&self, gathered: &[T], dx: &mut [T]) {
        let Geometry { stride, height, width, .. } = *self.geometry;
        let planes =
            dx.par_chunks_mut(height * width).zip(gathered.par_chunks(self.dense.pixels()));
        planes.with_min_len(BLOCK / (height * width)).for_each(|(plane, gathered)| {
            let rows = plane.chunks_mut(stride * width);
            for (row, gathered) in rows.zip(gathered.chunks_exact(self.dense.width)) {
                for (pixel, gathered) in row.iter_mut().step_by(stride).zip(gathered) {
                    *pixel = *gathered;
                }
            }
        });
    }
}
