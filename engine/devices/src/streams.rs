//! GPUs' streams, and the order between them.
//!
//! The work of one stream is done in its order. Where two streams meet, the order has to be made, by events: one
//! records how far it has come, the other waits for that. cudarc would see to it by itself, with two events for every
//! piece of memory, who read it last and who wrote it: for each operand of each launch the stream waits for one and
//! records one. Almost every launch here has the one stream of its device, so that is thousands of calls to the driver in
//! a training step for nothing, each as long as a small kernel. And it is not enough where streams do meet: who writes is
//! noted when memory is handed out to be written to, and candle writes the results of its kernels to memory that it was
//! lent to read. So it is switched off, and the few places where streams meet make their own order: uploads, NCCL's
//! collectives, [`transferred`], and a [`Moment`](super::Moment).

#![expect(unsafe_code, reason = "cudarc leaves the order between streams to whoever asks for it")]

use candle_core::{CudaDevice, Device, Error, Result, Tensor};

/// Leaves the order between this device's stream and others to us; called before there is any memory on the device.
pub(super) fn order_by_ourselves(gpu: &CudaDevice) {
    // SAFETY: a device's memory is allocated, used and freed on its stream, except where this module, uploads, moments and
    // NCCL's collectives use it on another, and those (of a moment, whoever carries a tensor from it) see to it that it is
    // used after it was written, and freed after that.
    unsafe { gpu.disable_event_tracking() };
}

/// A tensor of one GPU, or of another stream of the same, on `to`.
///
/// The copy waits for what computes the tensor; whatever changes or frees the tensor's memory later waits for the copy.
pub(super) fn transferred(tensor: &Tensor, from: &CudaDevice, to: &CudaDevice) -> Result<Tensor> {
    let (theirs, ours) = (from.cuda_stream(), to.cuda_stream());
    // Before the streams meet: this too is work of theirs.
    let tensor = tensor.force_contiguous()?;
    ours.join(&theirs).map_err(Error::wrap)?;
    let there = tensor.to_device(&Device::Cuda(to.clone()))?;
    theirs.join(&ours).map_err(Error::wrap)?;
    Ok(there)
}
