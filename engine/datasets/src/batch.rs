//! Some images and their labels, as a model takes them.

use candle_core::{Device, Result, Tensor};

use devices::move_view;

/// Samples, in the memory of one device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[B, channels, height, width]`, of garments `[B, 1, 28, 28]`: 0 (black) to 1 (white).
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

    /// The same batch on another device; on the CPU it goes on sharing its memory.
    ///
    /// # Errors
    ///
    /// When the copy fails.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        // A shard is a view of its batch.
        Ok(Self {
            images: move_view(&self.images, device)?,
            labels: move_view(&self.labels, device)?,
        })
    }
}
