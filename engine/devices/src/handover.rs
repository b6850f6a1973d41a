//! A tensor on its way to a second thread of the rank.
//!
//! A thread queues work on a GPU's stream long before the GPU does it. A [handover](Handover::new) is made once the work for a
//! tensor is queued. The second thread waits for this work, and not for later work:
//!
//! ```text
//! the device's stream   … tensor ─→ copy · event   later work, which may change or free the tensor
//! another stream                            └──→ to CPU memory, or a sum by NCCL
//! ```
//!
//! The copy belongs to the handover, so neither thread can change or free memory that the other thread uses. The second
//! thread gets no `Device` with a second stream: candle's `to_device` from stream to stream waits for nothing.

use candle_core::{Device, Result, Shape, Tensor};

#[cfg(feature = "cuda")]
use super::gpu::GpuCopy;

/// The elements of a tensor, for another thread.
#[derive(Debug)]
pub enum Handover {
    /// In CPU memory, which threads may share, and where work is always done. Or there are no elements.
    Shared(Tensor),
    /// A copy on a GPU.
    #[cfg(feature = "cuda")]
    Copied(GpuCopy),
}

impl Handover {
    /// Takes the elements that a tensor has after all work in its device's queue. A GPU copies them. Fails when the GPU
    /// fails.
    pub fn new(tensor: &Tensor) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(gpu) = tensor.device()
            && tensor.elem_count() > 0
        {
            return Ok(Self::Copied(GpuCopy::new(tensor, gpu)?));
        }
        Ok(Self::Shared(tensor.detach()))
    }

    /// Returns the tensor in CPU memory. Waits until a GPU has filled the copy. Fails when the GPU fails.
    pub fn receive(self) -> Result<Tensor> {
        match self {
            Self::Shared(tensor) => super::move_view(&tensor, &Device::Cpu),
            #[cfg(feature = "cuda")]
            Self::Copied(copy) => copy.fetch(),
        }
    }

    /// The number of bytes of the elements, and the shape.
    pub fn size(&self) -> (usize, &Shape) {
        let (shape, dtype) = match self {
            Self::Shared(tensor) => (tensor.shape(), tensor.dtype()),
            #[cfg(feature = "cuda")]
            Self::Copied(copy) => copy.kind(),
        };
        (shape.elem_count() * dtype.size_in_bytes(), shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_copies_nothing() {
        let tensor = Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap();
        let handover = Handover::new(&tensor).unwrap();
        assert_eq!((handover.size().0, handover.size().1.dims()), (8, &[2][..]));
        assert_eq!(handover.receive().unwrap().id(), tensor.id());
    }
}
