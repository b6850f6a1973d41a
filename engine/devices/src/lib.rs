//! Devices: what a model is trained on, and the promise that one device's work stays on it.
//!
//! The course runs on what the reader has. With GPUs, a device is a GPU. Without, a device is a *slice
//! of the CPU*: a thread pool of its own, as many threads as the slice has cores, and no more. A slice is
//! small but real: two slices of a two-core machine do work side by side, and what they exchange costs
//! time.
//!
//! A [`DevicePlan`] says which devices a run will have, before any of them exists. It is cheap, can be
//! printed, and can be sent to any thread. A [`ComputeDevice`] is made from a slot of the plan *inside
//! the thread that drives it*: on CUDA a tensor made in one thread and used in another is not ordered,
//! because each thread has a stream of its own.

mod arguments;
#[cfg(feature = "cuda")]
mod clock;
#[cfg(feature = "cuda")]
mod contexts;
mod moment;
mod plan;
#[cfg(feature = "cuda")]
mod pool;
mod slot;
#[cfg(feature = "cuda")]
mod streams;
#[cfg(feature = "cuda")]
mod upload;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::OnceLock;

use candle_core::{Device, Result, Tensor};
use rayon::ThreadPool;

pub use arguments::{DeviceArguments, SeveralDevices};
pub use moment::Moment;
pub use plan::{DevicePlan, MAX_DEVICES, MAX_THREADS, PlanError};
pub use slot::DeviceSlot;

use harness::report::trace::{DeviceClock, TracedDevice};

/// The kind of device a run asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceKind {
    /// GPUs where there are any, else slices of the CPU.
    Auto,
    /// Slices of the CPU.
    Cpu,
    /// NVIDIA GPUs; an error where there are none.
    Cuda,
}

/// An open device: where tensors live, and the threads that work on them.
#[derive(Debug)]
pub struct ComputeDevice {
    slot: DeviceSlot,
    device: Device,
    /// Opened when it is asked for.
    beside: OnceLock<Device>,
    pool: Option<ThreadPool>,
}

impl ComputeDevice {
    /// The candle device on which this device's tensors are made.
    pub fn tensors(&self) -> &Device {
        &self.device
    }

    /// The same device for a thread that works beside the one that drives it.
    ///
    /// Of a GPU it is another stream: what one thread queues does not wait for what the other has queued, and tensors go
    /// from one to the other by way of a [`Moment`], and back by [`move_view`]. (If there is no room for another, it is
    /// the same stream; then all waits for all.) A slice of the CPU has no streams.
    pub fn beside(&self) -> &Device {
        self.beside.get_or_init(|| self.slot.beside().unwrap_or_else(|| self.device.clone()))
    }

    /// Runs `work` on this device's own threads and waits for it.
    ///
    /// On a CPU slice everything parallel inside (our operations, `gemm`, rayon iterators) uses the
    /// slice's threads only. On a GPU `work` runs in the calling thread, which feeds the stream.
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
            return clock::EventClock::new(gpu).map(|clock| Box::new(clock) as _);
        }
        None
    }
}

/// A tensor on another device, where no more than the tensor's own elements is sent to a GPU or from it.
///
/// A shard is a view: it shares its batch's memory. Candle's `to_device` sends a GPU all of that memory with
/// every shard, and waits until it is there; a batch's share goes on its way while the GPU works on. Likewise a part of
/// what lies on a GPU is cut out there before it leaves. From CPU to CPU nothing is copied, and the view goes on sharing.
///
/// Between GPUs this is the way to go: each has a stream of its own, and `to_device` does not wait for what is still
/// being computed on the other's.
///
/// # Errors
///
/// When the copy fails.
pub fn move_view(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    // An empty view may take the rest along: GPUs have no memory of size 0 for a copy of it.
    if tensor.elem_count() == 0 || tensor.device().same_device(device) {
        return tensor.to_device(device);
    }
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = device {
        if let Device::Cuda(other) = tensor.device() {
            return streams::transferred(tensor, other, gpu);
        }
        if !tensor.track_op()
            && let Some(there) = upload::upload(&tensor.contiguous()?, gpu)?
        {
            return Ok(there);
        }
    }
    tensor.force_contiguous()?.to_device(device)
}

/// The cores this process may use.
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

#[cfg(feature = "cuda")]
fn gpu_count() -> usize {
    use candle_core::cuda_backend::cudarc::driver::CudaContext;
    // No driver, or no GPU, is an answer here, not a failure.
    CudaContext::device_count().map_or(0, |count| usize::try_from(count).unwrap_or(0))
}

#[cfg(not(feature = "cuda"))]
fn gpu_count() -> usize {
    0
}

/// A GPU with a stream of its own.
fn open_gpu(ordinal: usize) -> Result<Device> {
    #[cfg(feature = "cuda")]
    contexts::context(ordinal)?;
    let device = Device::new_cuda_with_stream(ordinal)?;
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = &device {
        streams::order_by_ourselves(gpu);
    }
    Ok(device)
}

#[cfg(feature = "cuda")]
fn compute_capability(ordinal: usize) -> candle_core::Result<(i32, i32)> {
    contexts::context(ordinal)?.compute_capability().map_err(candle_core::Error::wrap)
}

#[cfg(not(feature = "cuda"))]
fn compute_capability(ordinal: usize) -> candle_core::Result<(i32, i32)> {
    candle_core::bail!("cuda:{ordinal}: {}", why_no_gpu())
}

fn why_no_gpu() -> &'static str {
    if cfg!(feature = "cuda") {
        "no CUDA GPU was found: check the driver with nvidia-smi, or use --device cpu"
    } else {
        "this binary was built without CUDA: build it with --features cuda, or use --device cpu"
    }
}
