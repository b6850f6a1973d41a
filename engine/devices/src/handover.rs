//! A tensor on its way to a second thread, which uses a second stream of the GPU.
//!
//! A thread queues work on a GPU's stream long before the GPU does it. The thread [makes](Handover::new) a handover after it
//! has queued the work for a tensor. The second thread [receives](Handover::receive) the tensor on its own stream
//! ([`side_stream`](super::ComputeDevice::side_stream)), which waits for this work only and not for later work:
//!
//! ```text
//! first stream    … tensor ─→ copy · event   later work, which may change or free the tensor
//! second stream                         └──→ work on the copy, and the end of its memory
//! ```
//!
//! The two streams share no memory: the copy belongs to the handover, and then to the second stream. So neither thread can
//! change or free memory that the other stream uses.

use candle_core::{Device, Result, Tensor};

use super::gpu::Copied;

/// The elements of a tensor, for another thread.
#[derive(Debug)]
pub struct Handover(Elements);

#[derive(Debug)]
enum Elements {
    /// In CPU memory, which threads may share, and work is always done.
    Shared(Tensor),
    Copied(Copied),
}

impl Handover {
    /// Takes the elements that a tensor has after all work in its device's queue. A GPU copies them. Fails when the GPU
    /// fails.
    pub fn new(tensor: &Tensor) -> Result<Self> {
        Ok(Self(match tensor.device() {
            // A GPU has no memory of size 0.
            Device::Cuda(gpu) if tensor.elem_count() > 0 => {
                Elements::Copied(Copied::new(tensor, gpu)?)
            }
            _ => Elements::Shared(tensor.clone()),
        }))
    }

    /// Returns the tensor on `device`. On another stream of the same GPU, and in CPU memory, nothing is copied. Fails when
    /// the GPU fails.
    pub fn receive(self, device: &Device) -> Result<Tensor> {
        match self.0 {
            Elements::Shared(tensor) => super::move_view(&tensor, device),
            Elements::Copied(copied) => copied.receive(device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DevicePlan;

    #[test]
    fn a_slice_copies_nothing() {
        let plan = DevicePlan::slices(1).unwrap();
        let slice = plan.slots()[0].open().unwrap();
        let tensor = Tensor::new(&[1f32, 2.0], slice.tensors()).unwrap();
        let received = Handover::new(&tensor).unwrap().receive(slice.side_stream()).unwrap();
        assert_eq!(received.id(), tensor.id());
    }
}
