//! The forward pass and the backward pass: transforms, products for each place of a tile, and transforms back.

use rayon::prelude::*;

use super::Winograd;
use crate::Element;
use crate::backward::Wanted;
use crate::conv2d::im2col::Im2col;
use crate::conv2d::results::{Gradients, Output, Upstream, replace_nan};
use crate::kernels::gemm::{Store, gemm};
use crate::kernels::memory::Scratch;
use crate::kernels::simd::runs;

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Convolves the batch `x` and runs the epilogue into `output`, run by run.
    pub(in crate::conv2d) fn forward<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        output: &mut Output<'_, T>,
    ) {
        let g = self.geometry;
        let weights = self.transform_weights(weight);
        let mut spoilt = false;
        for images in runs(0..g.batch, self.images_at_once()) {
            let columns = self.columns(&images);
            let run = &x[images.start * g.image()..images.end * g.image()];
            let (tiles, zero_masks) =
                rayon::join(|| self.transform_inputs(run), || self.zero_masks(run));
            let mut products = Scratch::new(Self::PLACES * g.out_channels * columns);
            let places = products.par_chunks_mut(g.out_channels * columns).enumerate();
            places.for_each(|(place, products)| {
                let weights = Self::place_of_rows(&weights, g.out_channels, g.in_channels, place);
                let tiles = Self::place_of_rows(&tiles, g.in_channels, columns, place);
                gemm(weights, tiles, products, Store::Replace);
            });
            spoilt |= self.transform_outputs(&products, &zero_masks, images, output);
        }
        if spoilt {
            let mut plain = Output::new(output.geometry, output.epilogue, output.bias);
            Im2col(g).forward(x, weight, &mut plain);
            output.replace_nan(&plain);
        }
    }

    /// Adds up the gradients of a batch, run by run.
    pub(in crate::conv2d) fn backward<T: Element>(
        &self,
        x: &[T],
        weight: &[T],
        upstream: &Upstream<'_, T>,
        gradients: &mut Gradients<T>,
    ) {
        let g = self.geometry;
        let wanted = Wanted { input: gradients.x.is_some(), weights: gradients.weight.is_some() };
        let weights = wanted.input.then(|| self.transform_weights(weight));
        let kernels = g.out_channels * g.in_channels;
        let mut sums = wanted.weights.then(|| Scratch::new(Self::PLACES * kernels));
        let mut spoilt = false;
        for images in runs(0..g.batch, self.images_at_once()) {
            let columns = self.columns(&images);
            let pixels = images.start * g.image()..images.end * g.image();
            let tiles = wanted.weights.then(|| self.transform_inputs(&x[pixels.clone()]));
            let products = self.transform_gradients(upstream, images.clone(), &mut gradients.bias);
            let of_channels = g.in_channels * columns;
            let mut dtiles = wanted.input.then(|| Scratch::new(Self::PLACES * of_channels));

            let store = if images.start == 0 { Store::Replace } else { Store::Accumulate };
            let places = Self::by_place(sums.as_deref_mut(), kernels).into_par_iter();
            let places = places.zip(Self::by_place(dtiles.as_deref_mut(), of_channels));
            places.enumerate().for_each(|(place, (sums, dtiles))| {
                let products = Self::place_of_rows(&products, g.out_channels, columns, place);
                // dU: the sum over columns, run after run.
                if let (Some(tiles), Some(sums)) = (&tiles, sums) {
                    let tiles = Self::place_of_rows(tiles, g.in_channels, columns, place);
                    for first in (0..columns).step_by(Self::SUMMED) {
                        let part = first..columns.min(first.saturating_add(Self::SUMMED));
                        let store = if first == 0 { store } else { Store::Accumulate };
                        let tiles = tiles.columns(part.clone());
                        gemm(products.columns(part), tiles.transposed(), sums, store);
                    }
                }
                // dV, while the products are in the cache.
                if let (Some(weights), Some(dtiles)) = (&weights, dtiles) {
                    let weights =
                        Self::place_of_rows(weights, g.out_channels, g.in_channels, place);
                    gemm(weights.transposed(), products, dtiles, Store::Replace);
                }
            });
            if let (Some(dx), Some(dtiles)) = (&mut gradients.x, &dtiles) {
                spoilt |= self.add_up_tiles(dtiles, &mut dx[pixels]);
            }
        }
        if let (Some(dweight), Some(sums)) = (&mut gradients.weight, &sums) {
            spoilt |= self.weight_gradients(sums, dweight);
        }
        if spoilt {
            let mut plain = Gradients::new(g, wanted, false);
            Im2col(g).backward(x, weight, upstream, &mut plain);
            if let (Some(dx), Some(plain)) = (&mut gradients.x, &plain.x) {
                replace_nan(dx, plain, g.height * g.width);
            }
            if let (Some(dweight), Some(plain)) = (&mut gradients.weight, &plain.weight) {
                replace_nan(dweight, plain, R * R);
            }
        }
    }

    /// Splits numbers, if there are any, into a slice of `len` for each place.
    fn by_place<T>(numbers: Option<&mut [T]>, len: usize) -> Vec<Option<&mut [T]>> {
        let mut slices = numbers.map(|numbers| numbers.chunks_mut(len));
        (0..Self::PLACES).map(|_| slices.as_mut()?.next()).collect()
    }
}
