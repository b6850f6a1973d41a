//! The division of a batch of images into blocks of channels, one task for each block.
//!
//! ```text
//!            channel 0   1   2   3   4   5
//! image 0        ┌───────────┐
//! image 1        │ one block │           memory runs along the rows: in a block each
//! image 2        │ of three  │           image gives one stretch of whole planes
//! image 3        └───────────┘
//! ```
//!
//! Batch normalisation treats each channel separately. One thread computes a block, its images in
//! order, and no sum crosses threads. The bits therefore do not depend on the number of threads.
//!
//! A block usually fits in a core's cache: 64 images of 28×28 pixels are 200 KB. A second loop over
//! the block then reads from the cache.

use std::ops::Range;

use candle_core::{Result, Shape, bail};

/// The number of contiguous elements that a block takes from each image, if planes are small.
/// Reading a stretch of this length is efficient.
const STRETCH: usize = 1024;

/// The shape `[batch, channels, H, W]` with `plane = H·W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planes {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) plane: usize,
}

impl Planes {
    /// Reads the sizes from the shape of a batch of images.
    ///
    /// # Errors
    ///
    /// When the shape does not have four dimensions, or has no elements.
    pub(super) fn new(images: &Shape) -> Result<Self> {
        let &[batch, channels, height, width] = images.dims() else {
            bail!("batch_norm: images [B, C, H, W] expected, got {:?}", images.dims());
        };
        if images.elem_count() == 0 {
            bail!("batch_norm: there are no values in {:?}", images.dims());
        }
        Ok(Self { batch, channels, plane: height * width })
    }

    /// Values in one channel.
    pub(super) fn count(&self) -> usize {
        self.batch * self.plane
    }

    fn block(&self) -> usize {
        (STRETCH / self.plane).clamp(1, self.channels)
    }

    /// Returns the channels of each block, in order.
    pub(super) fn blocks(&self) -> Vec<Range<usize>> {
        (0..self.channels)
            .step_by(self.block())
            .map(|first| first..(first + self.block()).min(self.channels))
            .collect()
    }

    /// Returns a block's elements: for each image, the planes of the block's channels.
    #[inline(always)]
    pub(super) fn of<'a, T>(
        &self,
        x: &'a [T],
        channels: &Range<usize>,
    ) -> impl Iterator<Item = &'a [T]> + use<'a, T> {
        let stretch = channels.start * self.plane..channels.end * self.plane;
        x.chunks_exact(self.channels * self.plane).map(move |image| &image[stretch.clone()])
    }

    /// Splits `x` into the mutable elements of all blocks: by block, and within a block by image.
    pub(super) fn split_mut<'a, T>(&self, x: &'a mut [T]) -> Vec<Vec<&'a mut [T]>> {
        let mut blocks: Vec<_> =
            self.blocks().iter().map(|_| Vec::with_capacity(self.batch)).collect();
        for image in x.chunks_exact_mut(self.channels * self.plane) {
            let stretches = image.chunks_mut(self.block() * self.plane);
            for (block, stretch) in blocks.iter_mut().zip(stretches) {
                block.push(stretch);
            }
        }
        blocks
    }
}
