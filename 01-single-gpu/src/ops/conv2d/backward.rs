//! The gradients of a convolution.
//!
//! Every image adds to the same weight gradient, so threads cannot simply share it. The batch is cut
//! into a fixed number of groups, each with a partial sum of its own, and the partial sums are added in
//! a fixed order. The number of groups depends on the batch alone: more threads never change the bits.

use std::ops::Range;

use rayon::prelude::*;

use super::geometry::Geometry;
use crate::ops::Element;
use crate::ops::gemm::{Into, Matrix, gemm};

/// The most groups a batch is cut into, and so the most threads that share a backward pass.
const MAX_GROUPS: usize = 8;

/// Gradients with respect to a convolution's three arguments, in their shapes.
pub(super) struct Gradients<T> {
    /// `None` when the input needs no gradient.
    pub(super) x: Option<Vec<T>>,
    pub(super) weight: Vec<T>,
    pub(super) bias: Vec<T>,
}

/// What one group of images contributes.
struct Partial<T> {
    weight: Vec<T>,
    bias: Vec<T>,
}

impl<T: Element> Partial<T> {
    fn add(mut self, other: &Self) -> Self {
        let pairs = self.weight.iter_mut().zip(&other.weight);
        for (sum, &term) in pairs.chain(self.bias.iter_mut().zip(&other.bias)) {
            *sum += term;
        }
        self
    }
}

impl Geometry {
    /// `x` and `grad` hold the batch's images and the gradients of its output images.
    pub(super) fn backward<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        grad: &[T],
        want_dx: bool,
    ) -> Gradients<T> {
        let mut dx = want_dx.then(|| vec![T::zero(); x.len()]);
        let groups = self.groups();
        let room = match &mut dx {
            Some(dx) => split_by_group(dx, &groups, self.image()),
            None => groups.iter().map(|_| None).collect(),
        };
        let partials: Vec<Partial<T>> = groups
            .par_iter()
            .zip(room)
            .map(|(images, dx)| self.backward_group(images.clone(), x, weight, grad, dx))
            .collect();
        let empty = Partial {
            weight: vec![T::zero(); weight.len()],
            bias: vec![T::zero(); self.out_channels],
        };
        let sum = partials.iter().fold(empty, Partial::add);
        Gradients { x: dx, weight: sum.weight, bias: sum.bias }
    }

    fn backward_group<T: Element>(
        &self,
        images: Range<usize>,
        x: &[T],
        weight: &[T],
        grad: &[T],
        mut dx: Option<&mut [T]>,
    ) -> Partial<T> {
        let (patch, pixels) = (self.patch(), self.pixels());
        let weight = Matrix::new(weight, self.out_channels, patch);
        let mut partial = Partial {
            weight: vec![T::zero(); self.out_channels * patch],
            bias: vec![T::zero(); self.out_channels],
        };
        let mut unfolded = vec![T::zero(); patch * pixels];
        for (nth, image) in images.enumerate() {
            let x = &x[image * self.image()..][..self.image()];
            let grad = &grad[image * self.out_image()..][..self.out_image()];
            let g = Matrix::new(grad, self.out_channels, pixels);

            self.unfold(x, &mut unfolded);
            let patches = Matrix::new(&unfolded, patch, pixels);
            gemm(g, patches.transposed(), &mut partial.weight, Into::Accumulate);
            for (sum, plane) in partial.bias.iter_mut().zip(grad.chunks(pixels)) {
                *sum += plane.iter().copied().sum();
            }
            if let Some(dx) = &mut dx {
                gemm(weight.transposed(), g, &mut unfolded, Into::Replace);
                self.fold(&unfolded, &mut dx[nth * self.image()..][..self.image()]);
            }
        }
        partial
    }

    /// The batch in at most [`MAX_GROUPS`] runs of images whose sizes differ by at most one.
    fn groups(&self) -> Vec<Range<usize>> {
        let groups = self.batch.min(MAX_GROUPS);
        (0..groups)
            .map(|group| group * self.batch / groups..(group + 1) * self.batch / groups)
            .collect()
    }
}

/// Cuts the input's gradient into each group's images.
fn split_by_group<'a, T>(
    mut dx: &'a mut [T],
    groups: &[Range<usize>],
    image: usize,
) -> Vec<Option<&'a mut [T]>> {
    let mut rooms = Vec::with_capacity(groups.len());
    for group in groups {
        let (room, rest) = dx.split_at_mut(group.len() * image);
        rooms.push(Some(room));
        dx = rest;
    }
    rooms
}
