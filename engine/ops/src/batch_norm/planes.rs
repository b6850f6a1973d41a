//! How a batch of images is shared out among threads: by channels.
//!
//! ```text
//!            channel 0   1   2   3   4   5
//! image 0        ┌───────────┐
//! image 1        │ one block │           memory runs along the rows: in a block each
//! image 2        │ of three  │           image gives one stretch of whole planes
//! image 3        └───────────┘
//! ```
//!
//! Everything in batch normalisation is by channel, so a block is finished by one thread, its images in
//! order, and no sum crosses threads: the bits cannot depend on how many there are. What a block holds
//! of a batch fits a core's cache as a rule (64 images of 28×28 are 200 KB), so that a second walk over
//! it does not go to memory again.

use std::ops::Range;

use candle_core::{Result, Shape, bail};

/// Elements that a block takes of each image, if planes are small: a stretch of memory worth walking
/// along.
const STRETCH: usize = 1024;

/// The shape `[batch, channels, H, W]` with `plane = H·W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planes {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) plane: usize,
}

impl Planes {
    /// The sizes of images.
    pub(super) fn new(images: &Shape) -> Result<Self> {
        let &[batch, channels, height, width] = images.dims() else {
            bail!("batch_norm: images [B, C, H, W] expected, got {:?}", images.dims());
        };
        if images.elem_count() == 0 {
            bail!("batch_norm: there are no values in {:?}", images.dims());
        }
        Ok(Self { batch, channels, plane: height * width })
    }

    /// Values of one channel.
    pub(super) fn count(&self) -> usize {
        self.batch * self.plane
    }

    fn block(&self) -> usize {
        (STRETCH / self.plane).clamp(1, self.channels)
    }

    /// The blocks' channels, in order.
    pub(super) fn blocks(&self) -> Vec<Range<usize>> {
        (0..self.channels)
            .step_by(self.block())
            .map(|first| first..(first + self.block()).min(self.channels))
            .collect()
    }

    /// What a block holds: for each image, the planes of the block's channels.
    #[inline(always)]
    pub(super) fn of<'a, T>(
        &self,
        x: &'a [T],
        channels: &Range<usize>,
    ) -> impl Iterator<Item = &'a [T]> + use<'a, T> {
        let stretch = channels.start * self.plane..channels.end * self.plane;
        x.chunks_exact(self.channels * self.plane).map(move |image| &image[stretch.clone()])
    }

    /// The same of all blocks, to write to: by block, then by image.
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
