//! A moment in a device's work, for another thread to begin from.
//!
//! A GPU does the work of one stream in its order, and whoever drives it queues work long before it is done. A thread that
//! takes up a tensor later and queues its own work on the same stream gets behind all that was queued meanwhile. So the one
//! who has queued the tensor notes the moment, and the other, on a stream of its own
//! ([`beside`](super::ComputeDevice::beside)), waits for that moment and for no more:
//!
//! ```text
//! device   … gradients of layer 8 ┊ of layer 7, of layer 6, of layer 5 …
//!                           moment└─→ copy, and what is done with it
//! beside it
//! ```

use candle_core::{Device, Result, Tensor};

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::CudaEvent;

/// How far a device had come with what it was given to do. A slice of the CPU has always done all of it.
#[derive(Debug)]
pub struct Moment {
    #[cfg(feature = "cuda")]
    reached: Option<CudaEvent>,
}

impl Moment {
    /// Behind everything that `device` was given so far.
    ///
    /// # Errors
    ///
    /// When the GPU fails.
    pub fn of(device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        {
            let Device::Cuda(gpu) = device else { return Ok(Self { reached: None }) };
            let reached = gpu.cuda_stream().record_event(None);
            Ok(Self { reached: Some(reached.map_err(candle_core::Error::wrap)?) })
        }
        #[cfg(not(feature = "cuda"))]
        {
            let _ = device;
            Ok(Self {})
        }
    }

    /// A contiguous tensor as it is at this moment, on `there`: itself, if that is where it is, and otherwise a copy.
    ///
    /// The copy may be made later. Until there is something that was computed from it, the tensor must stay as it is.
    ///
    /// # Errors
    ///
    /// When a copy fails.
    pub fn carry(&self, tensor: &Tensor, there: &Device) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if let (Some(reached), Device::Cuda(gpu)) = (&self.reached, there)
            && !tensor.device().same_device(there)
        {
            gpu.cuda_stream().wait(reached).map_err(candle_core::Error::wrap)?;
        }
        tensor.to_device(there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DevicePlan;

    #[test]
    fn a_slice_carries_nothing() {
        let plan = DevicePlan::slices(1).unwrap();
        let slice = plan.slots()[0].open().unwrap();
        let tensor = Tensor::new(&[1f32, 2.0], slice.tensors()).unwrap();
        let carried = Moment::of(slice.tensors()).unwrap().carry(&tensor, slice.beside()).unwrap();
        assert_eq!(carried.id(), tensor.id());
    }
}
