//! The order of work between streams.
//!
//! A stream does its work in order. Two streams are ordered by events: one stream records an event, and the other waits for
//! the event. cudarc can do this automatically, with two events per allocation: one for the last read and one for the last
//! write. For each operand of each launch, the stream then waits for one event and records another. Almost every launch of
//! the course uses the one stream of its device, so a training step would make thousands of useless calls to the driver.
//! Each of them takes as long as a small kernel. Moreover, the automatic order is incomplete: candle writes results of
//! kernels to memory that it has borrowed for reading, and cudarc records no write. So the automatic order is off. The few
//! places where two streams meet record their own events: uploads, NCCL's collectives, [`transferred`], and
//! [`Event`](super::Event).

#![expect(unsafe_code, reason = "without cudarc's events, the caller has to order the streams")]

use candle_core::{CudaDevice, Device, Error, Result, Tensor};

/// Switches cudarc's automatic order off. Call this before anything is allocated on the device.
pub(super) fn order_by_ourselves(gpu: &CudaDevice) {
    // SAFETY: a device's memory is allocated, used and freed on its stream. Four places use it on another stream: this
    // module, uploads, NCCL's collectives, and the caller of `Event::to_device`. Each of them records events so that the memory
    // is used after it was written and freed after it was used.
    unsafe { gpu.disable_event_tracking() };
}

/// Copies a tensor from one GPU to another, or from one stream of a GPU to another.
///
/// The copy waits for the work that computes the tensor. Later work that changes or frees the tensor's memory waits for the
/// copy.
pub(super) fn transferred(tensor: &Tensor, from: &CudaDevice, to: &CudaDevice) -> Result<Tensor> {
    let (theirs, ours) = (from.cuda_stream(), to.cuda_stream());
    // Before the join: the other stream does this work, too.
    let tensor = tensor.force_contiguous()?;
    ours.join(&theirs).map_err(Error::wrap)?;
    let there = tensor.to_device(&Device::Cuda(to.clone()))?;
    theirs.join(&ours).map_err(Error::wrap)?;
    Ok(there)
}
