//! The images and labels of one step.

use candle_core::{Device, Result, Tensor};

use devices::move_view;

/// Samples in the memory of one device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[B, channels, height, width]`, for garments `[B, 1, 28, 28]`: 0 (black) to 1 (white).
    pub images: Tensor,
    /// `[B]`, u32.
    pub labels: Tensor,
}

impl Batch {
    /// The number of samples, B.
    pub fn len(&self) -> usize {
        self.labels.elem_count()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves the batch to another device. On the CPU both batches share their memory.
    ///
    /// # Errors
    ///
    /// When the copy fails.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        // The batch may be a shard: a view of a larger batch.
        Ok(Self {
            images: move_view(&self.images, device)?,
            labels: move_view(&self.labels, device)?,
        })
    }
}
