//! A convolution's input as the convolution reads it: sixteen images side by side, with their padding.

use rayon::prelude::*;

use super::geometry::Geometry;
use crate::ops::Element;
use crate::ops::lanes::{LANES, lanes_mut};
use crate::ops::simd::vectorised;

impl Geometry {
    /// Numbers of a block: of sixteen images, all channels' planes with their padding.
    pub(super) fn block(&self) -> usize {
        self.in_channels * self.padded().outer() * LANES
    }

    /// Fills `planes`, block by block and in each channel by channel, with the images `x`.
    ///
    /// `planes` has room for as many blocks as `x` fills, the last one perhaps in part.
    pub(super) fn load<T: Element>(&self, x: &[T], planes: &mut [T]) {
        let frame = self.padded();
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
    }
}
