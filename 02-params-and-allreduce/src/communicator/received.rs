//! What arrives: a tensor, and whose memory it lies in.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::mpsc::Sender;

use candle_core::{Device, Tensor};

/// A tensor that has arrived, to be read. If it was lent, dropping this gives it back.
#[derive(Debug)]
pub struct Received {
    // Let go of before the sender hears of it.
    tensor: Tensor,
    memory: Memory,
}

/// Whose memory a tensor lies in that has arrived.
#[derive(Debug)]
pub(crate) enum Memory {
    /// The receiver's.
    Own,
    /// Others may read it too, and nobody writes to it.
    Shared,
    /// The sender's, which waits until this end of a channel is closed.
    Lent {
        /// Nothing is ever sent.
        _until_closed: Sender<Infallible>,
    },
}

impl Received {
    pub(crate) fn new(tensor: Tensor, memory: Memory) -> Self {
        Self { tensor, memory }
    }

    /// A tensor that others may read too.
    pub fn shared(tensor: Tensor) -> Self {
        Self::new(tensor, Memory::Shared)
    }

    /// The same message with the tensor on another device.
    pub(crate) fn moved_to(self, device: &Device) -> candle_core::Result<Self> {
        if device.is_cpu() {
            return Ok(self);
        }
        Ok(Self::new(self.tensor.to_device(device)?, Memory::Own))
    }

    /// The tensor in memory of this rank's own: a copy, unless the sender has made one already.
    ///
    /// # Errors
    ///
    /// When the copy fails.
    pub fn owned(&self) -> candle_core::Result<Tensor> {
        match self.memory {
            Memory::Own => Ok(self.tensor.clone()),
            Memory::Shared | Memory::Lent { .. } => self.tensor.force_contiguous(),
        }
    }

    /// The tensor, to keep but not to write to: a copy only if it was lent.
    pub(crate) fn into_shared(self) -> candle_core::Result<Tensor> {
        match self.memory {
            Memory::Own | Memory::Shared => Ok(self.tensor),
            Memory::Lent { .. } => self.tensor.force_contiguous(),
        }
    }
}

impl Deref for Received {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}
