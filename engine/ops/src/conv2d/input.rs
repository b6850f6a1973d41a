//! Loads a convolution's input as blocks of sixteen images, with padding.

use std::ops::Range;

use rayon::prelude::*;

use super::geometry::Geometry;
use crate::Element;
use crate::lanes::{LANES, lanes_mut};
use crate::scratch::Scratch;
use crate::simd::vectorised;

impl Geometry {
    /// Numbers in a block: the padded planes of all channels, for sixteen images.
    pub(super) fn block(&self) -> usize {
        self.in_channels * self.padded().outer() * LANES
    }

    /// Loads a range of images of the batch `x`. Blocks follow in order, and within each block,
    /// channels follow in order. If the last block has fewer than sixteen images, its other lanes
    /// are zero.
    pub(super) fn load<T: Element>(&self, x: &[T], images: Range<usize>) -> Scratch<T> {
        let frame = self.padded();
        let mut planes = Scratch::new(images.len().div_ceil(LANES) * self.block());
        let x = &x[images.start * self.image()..images.end * self.image()];
        let planes_of_images = planes.par_chunks_mut(frame.outer() * LANES).enumerate();
        planes_of_images.for_each(|(nth, plane)| {
            let (block, channel) = (nth / self.in_channels, nth % self.in_channels);
            let images = x.chunks_exact(self.image()).skip(block * LANES).take(LANES);
            let of_channel = images.map(|image| &image[channel * frame.inner()..][..frame.inner()]);
            vectorised(
                #[inline(always)]
                || frame.load(of_channel, lanes_mut(plane)),
            );
        });
        planes
    }
}
