//! An event in a device's work, from which a second thread continues.
//!
//! A thread queues work on a GPU's stream long before the GPU does it. The thread records an event after it has queued
//! the work for a tensor. A second thread uses another stream ([`side_stream`](super::ComputeDevice::side_stream)),
//! which waits for this event only and not for later work.

use candle_core::{Device, Result, Tensor};

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::CudaEvent;

/// A point in a device's queue of work. A slice of the CPU has no queue: its work is always done.
#[derive(Debug, Default)]
pub struct Event {
    #[cfg(feature = "cuda")]
    event: Option<CudaEvent>,
}

impl Event {
    /// Records an event after all work that `device` has in its queue. Fails when the GPU fails.
    pub fn record(device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(gpu) = device {
            let event = gpu.cuda_stream().record_event(None);
            return Ok(Self { event: Some(event.map_err(candle_core::Error::wrap)?) });
        }
        let _ = device;
        Ok(Self::default())
    }

    /// Moves a contiguous tensor, with its elements at the time of the event, to `device`. If the tensor is on
    /// `device`, nothing is copied. The GPU may copy later: the tensor must neither change nor be dropped until a
    /// result that was computed from the copy is there.
    pub fn to_device(&self, tensor: &Tensor, device: &Device) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if let (Some(event), Device::Cuda(gpu)) = (&self.event, device)
            && !tensor.device().same_device(device)
        {
            gpu.cuda_stream().wait(event).map_err(candle_core::Error::wrap)?;
        }
        tensor.to_device(device)
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
        let event = Event::record(slice.tensors()).unwrap();
        let moved = event.to_device(&tensor, slice.side_stream()).unwrap();
        assert_eq!(moved.id(), tensor.id());
    }
}
