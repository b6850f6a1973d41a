//! GPUs: their contexts, memory pools, streams and clocks.
//!
//! The driver destroys a GPU's context, with its memory and kernels, when the context has no user. A program may open devices
//! one after the other, so this module keeps the contexts until the program ends.
//!
//! Two streams are ordered by events: one stream records an event, and the other waits for it. cudarc can do this by itself, with
//! two events per allocation: thousands of calls to the driver in a training step, each as long as a small kernel. Moreover, candle
//! writes to memory that it has borrowed for reading, and cudarc records no write. So the automatic order is off. The places where
//! two streams meet record their own events: uploads, NCCL's collectives, [`transferred`], and [`GpuCopy`].

#![expect(unsafe_code, reason = "memory pools have no safe calls, and we order the streams")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::CudaStorageSlice as Slice;
use candle_core::cuda_backend::cudarc::driver::sys::{CUevent_flags, CUmemPool_attribute};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, DType, Device, Error, Result, Shape, Storage, Tensor, bail,
};

use harness::lock::locked;
use harness::report::trace::DeviceClock;

static KEPT: Mutex<Vec<Arc<CudaContext>>> = Mutex::new(Vec::new());

/// The number of GPUs. Without a driver there are none, which is no failure.
pub(super) fn count() -> usize {
    CudaContext::device_count().map_or(0, |count| usize::try_from(count).unwrap_or(0))
}

pub(super) fn open(ordinal: usize) -> Result<Device> {
    context(ordinal)?;
    let device = Device::new_cuda_with_stream(ordinal)?;
    if let Device::Cuda(gpu) = &device {
        // SAFETY: a device's memory is allocated, used and freed on its stream. Three places use it on another stream: this module,
        // uploads and NCCL's collectives. Each records events so that memory is used after it was written and freed after it was
        // used. Nothing is allocated on the device yet. A rank has one device. Between the devices of two ranks, `move_view` takes
        // the place of candle's `to_device`, which waits for nothing.
        unsafe { gpu.disable_event_tracking() };
    }
    Ok(device)
}

/// Returns the compute capability, such as (9, 0).
pub(super) fn compute_capability(ordinal: usize) -> Result<(i32, i32)> {
    context(ordinal)?.compute_capability().map_err(Error::wrap)
}

/// Returns the context of a GPU. The first call creates the context and makes the GPU keep freed memory.
fn context(ordinal: usize) -> Result<Arc<CudaContext>> {
    let mut kept = locked(&KEPT);
    if let Some(context) = kept.iter().find(|context| context.ordinal() == ordinal) {
        return Ok(Arc::clone(context));
    }
    let context = CudaContext::new(ordinal).map_err(Error::wrap)?;
    keep_memory(&context)?;
    kept.push(Arc::clone(&context));
    Ok(context)
}

/// Makes the GPU's pool keep freed memory. By default the driver returns it whenever the program waits for the GPU.
fn keep_memory(context: &CudaContext) -> Result<()> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    context.bind_to_thread().map_err(Error::wrap)?;
    let mut everything = u64::MAX;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device belongs to the context, the pool belongs to the device, and the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_mem_pool(context.cu_device()).map_err(Error::wrap)?;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut everything).cast())
    }
    .map_err(Error::wrap)
}

/// Copies a tensor from one GPU or stream to another. The copy waits for the work that computes the tensor, and later
/// work on the tensor's memory waits for the copy.
pub(super) fn transferred(tensor: &Tensor, from: &CudaDevice, to: &CudaDevice) -> Result<Tensor> {
    let (theirs, ours) = (from.cuda_stream(), to.cuda_stream());
    // Before the join: the other stream does this work, too.
    let tensor = tensor.force_contiguous()?;
    ours.join(&theirs).map_err(Error::wrap)?;
    let there = tensor.to_device(&Device::Cuda(to.clone()))?;
    theirs.join(&ours).map_err(Error::wrap)?;
    Ok(there)
}

/// The copy of a tensor in memory that nothing else uses. The memory is allocated and freed on the stream of its device.
#[derive(Debug)]
pub struct GpuCopy {
    /// The elements, in a row.
    pub storage: CudaStorage,
    /// The tensor's shape.
    pub shape: Shape,
    /// Comes after the copy. Another stream waits for this event before it uses the memory, and the host waits for that
    /// stream before it uses or frees the memory.
    pub there: CudaEvent,
}

impl GpuCopy {
    /// Queues the copy of a tensor on its own stream.
    pub(super) fn new(tensor: &Tensor, gpu: &CudaDevice) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else { bail!("expected a tensor on a GPU") };
        let storage = storage.to_dtype(layout, tensor.dtype())?;
        let there = gpu.cuda_stream().record_event(None).map_err(Error::wrap)?;
        Ok(Self { storage, shape: layout.shape().clone(), there })
    }

    pub(super) fn kind(&self) -> (&Shape, DType) {
        (&self.shape, self.storage.dtype())
    }

    /// Whether the tensor is one of this device.
    pub fn is_on(&self, device: &Device) -> bool {
        matches!(device, Device::Cuda(gpu) if gpu.id() == self.storage.device.id())
    }

    /// Returns the tensor on the copy's device, in the order of the device's stream.
    pub fn into_tensor(self) -> Tensor {
        tensor(Storage::Cuda(self.storage), self.shape)
    }

    /// Copies the elements to CPU memory, on a stream that waits for the copy and for nothing later.
    pub(super) fn fetch(self) -> Result<Tensor> {
        let Self { storage, shape, there } = self;
        let stream = storage.device.cuda_stream().context().new_stream().map_err(Error::wrap)?;
        stream.wait(&there).map_err(Error::wrap)?;
        macro_rules! fetched {
            ($($kind:ident),+) => {
                match &storage.slice {
                    $(Slice::$kind(memory) => {
                        CpuStorage::$kind(stream.clone_dtoh(memory).map_err(Error::wrap)?)
                    })+
                    _ => bail!("floats, u8, u32 and i64 go to another thread"),
                }
            };
        }
        let fetched = fetched!(U8, U32, I64, BF16, F16, F32, F64);
        stream.synchronize().map_err(Error::wrap)?;
        Ok(tensor(Storage::Cpu(fetched), shape))
    }
}

fn tensor(storage: Storage, shape: Shape) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// The most marks of a clock: each is an event that the driver keeps until the end of the run.
const MOST_MARKS: usize = 100_000;

/// A clock whose marks are CUDA events on a GPU's stream.
#[derive(Debug)]
pub(super) struct EventClock {
    stream: Arc<CudaStream>,
    began: CudaEvent,
    marks: Vec<CudaEvent>,
}

impl EventClock {
    /// Waits for the GPU's stream, and starts a clock. Returns `None` if the GPU fails.
    pub(super) fn new(gpu: &CudaDevice) -> Option<Self> {
        let stream = gpu.cuda_stream();
        stream.synchronize().ok()?;
        let began = event(&stream)?;
        Some(Self { stream, began, marks: Vec::new() })
    }
}

impl DeviceClock for EventClock {
    fn mark(&mut self) -> Option<usize> {
        if self.marks.len() == MOST_MARKS {
            return None;
        }
        self.marks.push(event(&self.stream)?);
        Some(self.marks.len() - 1)
    }

    fn times(&mut self) -> Vec<Duration> {
        let times = self.marks.iter().map_while(|mark| self.began.elapsed_ms(mark).ok());
        times.map(|ms| Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3)).collect()
    }
}

/// Records an event with a time stamp.
fn event(stream: &Arc<CudaStream>) -> Option<CudaEvent> {
    stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).ok()
}
