//! Devices: GPUs, or *slices of the CPU*: thread pools with as many threads as the slice has cores.
//!
//! A [`DevicePlan`] lists the devices of a run before any of them is opened. A [`ComputeDevice`] is opened from a slot of
//! the plan *in the thread that uses it*: each device has its own CUDA stream, and no stream waits for another by itself.

#[cfg(feature = "cuda")]
mod gpu;
mod handover;
mod plan;
#[cfg(feature = "cuda")]
mod upload;

use std::fmt;

use candle_core::{Device, Result, Tensor};
use rayon::ThreadPool;

#[cfg(feature = "cuda")]
pub use gpu::GpuCopy;
pub use handover::Handover;
pub use plan::{DeviceArguments, DevicePlan, DeviceSlot, MAX_DEVICES, MAX_THREADS, SeveralDevices};

pub use harness::machine::{CoreSet, available_cores};
use harness::report::trace::{DeviceClock, TracedDevice};

/// The kind of device a run asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceKind {
    /// GPUs if the machine has any, else slices of the CPU.
    Auto,
    /// Slices of the CPU.
    Cpu,
    /// NVIDIA GPUs. On a machine without GPUs this is an error.
    Cuda,
}

/// An open device: a candle device for tensors, and the threads that compute.
#[derive(Debug)]
pub struct ComputeDevice {
    slot: DeviceSlot,
    device: Device,
    pool: Option<ThreadPool>,
}

impl ComputeDevice {
    /// The candle device for this device's tensors.
    pub fn tensors(&self) -> &Device {
        &self.device
    }

    /// Runs `work` on this device's threads, and waits until it ends. All parallel code in `work` uses only the threads
    /// of the CPU slice. On a GPU `work` runs in the calling thread, which queues work on the stream.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

impl fmt::Display for ComputeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}

impl TracedDevice for ComputeDevice {
    fn clock(&self) -> Option<Box<dyn DeviceClock>> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(gpu) = &self.device {
            return gpu::EventClock::new(gpu).map(|clock| Box::new(clock) as _);
        }
        None
    }
}

/// Moves a tensor to another device. From CPU to CPU nothing is copied.
///
/// Of a shard, candle's `to_device` copies the memory of the whole batch to the GPU, and waits for the copy. This function copies
/// the shard alone, and the GPU goes on working. Between GPUs, the copy waits until the tensor is computed, and candle's does not.
pub fn move_view(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    // An empty view is moved with the memory that it shares: a GPU cannot allocate 0 bytes for a copy.
    if tensor.elem_count() == 0 || tensor.device().same_device(device) {
        return tensor.to_device(device);
    }
    #[cfg(feature = "cuda")]
    if let Device::Cuda(to) = device {
        if let Device::Cuda(from) = tensor.device() {
            return gpu::transferred(tensor, from, to);
        }
        if !tensor.track_op()
            && let Some(there) = upload::upload(&tensor.contiguous()?, to)?
        {
            return Ok(there);
        }
    }
    tensor.force_contiguous()?.to_device(device)
}

/// The functions of `gpu.rs` in a program without CUDA.
#[cfg(not(feature = "cuda"))]
mod gpu {
    use candle_core::{Device, Result, bail};

    pub(super) fn count() -> usize {
        0
    }

    pub(super) fn open(ordinal: usize) -> Result<Device> {
        bail!("cuda:{ordinal}: {}", super::why_no_gpu())
    }

    pub(super) fn compute_capability(ordinal: usize) -> Result<(i32, i32)> {
        bail!("cuda:{ordinal}: {}", super::why_no_gpu())
    }
}

fn why_no_gpu() -> &'static str {
    if cfg!(feature = "cuda") {
        "no CUDA GPU was found: check the driver with nvidia-smi, or use --device cpu"
    } else {
        "this binary was built without CUDA: build it with --features cuda, or use --device cpu"
    }
}
