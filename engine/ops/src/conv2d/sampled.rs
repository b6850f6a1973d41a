//! A convolution whose kernel is one pixel, and that moves by several: a short cut to where planes are smaller.
//!
//! It looks at one pixel in stride². By unfolding, all of them would be laid side by side, and of the gradient all would
//! be taken apart again. So what it looks at is taken first, and what is left is a convolution that moves by one:
//!
//! ```text
//! a · b · c
//! · · · · ·      →     a b c     of stride 1
//! d · e · f            d e f
//! ```
//!
//! The gradient goes back to the pixels that were taken. That of the others is zero.
//!
//! Cost: that of the smaller convolution, and the pixels that are taken, copied.

use std::mem::take;

use rayon::prelude::*;

use super::geometry::Geometry;
use super::gradients::{Gradients, Upstream};
use super::output::Output;
use super::unfolded::Unfolded;
use crate::room::room;
use crate::{BLOCK, Element};

/// A convolution of the pixels that it looks at.
pub(super) struct Sampled<'a> {
    geometry: &'a Geometry,
    /// The smaller one.
    dense: Geometry,
}

impl<'a> Sampled<'a> {
    /// Whether a convolution can be computed so.
    pub(super) fn suits(g: &Geometry) -> bool {
        (g.kernel_h, g.kernel_w, g.padding) == (1, 1, 0) && g.stride > 1
    }

    pub(super) fn new(geometry: &'a Geometry) -> Self {
        let Geometry { out_h, out_w, .. } = *geometry;
        Self { geometry, dense: Geometry { height: out_h, width: out_w, stride: 1, ..*geometry } }
    }

    /// Convolves the batch `x` and finishes it into `output`.
    pub(super) fn forward<T: Element>(&self, x: &[T], weight: &[T], output: &mut Output<'_, T>) {
        Unfolded::new(&self.dense).forward(&self.taken(x), weight, output);
    }

    /// Makes the gradients for the batch `x`.
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

    /// The pixels of `x` that are looked at. All of the batch's, so in memory that is given back.
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

    /// Writes their gradients where they were taken from.
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
