//! Batches on their way to a GPU.
//!
//! A copy from ordinary memory keeps the processor waiting: the driver first copies to memory that cannot be moved
//! (*pinned*), from which alone a GPU can fetch by itself. Here that memory is ours, so the processor goes on as soon
//! as it has written there. And the copy has a stream of its own, so that it goes on beside the kernels of the step
//! before:
//!
//! ```text
//! processor        batch ─→ pinned
//! copy stream                 └──→ staging ───┐                  while kernels of the last step run
//! device's stream  … kernels of the last step └→ tensor, kernels of this step …
//! ```
//!
//! The last copy is from the GPU's memory to itself, a matter of microseconds: so that tensors have memory of their own,
//! given back in the order of the device's stream, and nothing else knows of the copy stream. There are four lanes, used
//! in turn, for images and labels of two batches: one is written to while the others are under way.

#![expect(unsafe_code, reason = "CUDA's copies take addresses; sizes are checked")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, DevicePtr as _, DevicePtrMut as _, DeviceRepr,
    HostSlice as _, PinnedHostSlice, result,
};
use candle_core::cuda_backend::{CudaDType, DeviceId};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, Error, Result, Storage, Tensor};

/// The largest upload that has a lane; what is larger is rare, and would keep as much memory from others.
const LARGEST: usize = 16 << 20;

/// A contiguous tensor in CPU memory as one on a GPU; `None` if it is not of a kind that batches are made of.
pub(super) fn upload(tensor: &Tensor, gpu: &CudaDevice) -> Result<Option<Tensor>> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
    else {
        return Ok(None);
    };
    let there = match storage {
        CpuStorage::U32(values) => sent(&values[start..end], gpu)?,
        CpuStorage::BF16(values) => sent(&values[start..end], gpu)?,
        CpuStorage::F32(values) => sent(&values[start..end], gpu)?,
        CpuStorage::F64(values) => sent(&values[start..end], gpu)?,
        _ => None,
    };
    let tensor = |there| {
        Tensor::from_storage(Storage::Cuda(there), layout.shape(), BackpropOp::none(), false)
    };
    Ok(there.map(tensor))
}

fn sent<T: DeviceRepr + CudaDType>(values: &[T], gpu: &CudaDevice) -> Result<Option<CudaStorage>> {
    let size = size_of_val(values);
    if !(1..=LARGEST).contains(&size) {
        return Ok(None);
    }
    // SAFETY: the copy writes every byte. If it fails, nobody gets to see the memory.
    let mut there = unsafe { gpu.alloc::<T>(values.len()) }?;
    // SAFETY: numbers have no bytes of no value between them.
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size) };
    UPLOADS.with_borrow_mut(|uploads| {
        let uploads = match uploads.entry(gpu.id()) {
            Entry::Occupied(uploads) => uploads.into_mut(),
            Entry::Vacant(place) => place.insert(Uploads::new(gpu)?),
        };
        uploads.send(bytes, &mut there)
    })?;
    Ok(Some(CudaStorage::wrap_cuda_slice(there, gpu.clone())))
}

thread_local! {
    /// Those of each GPU that this thread drives.
    static UPLOADS: RefCell<HashMap<DeviceId, Uploads>> = RefCell::default();
}

const LANES: usize = 4;

/// The way to one GPU.
struct Uploads {
    /// The device's own.
    stream: Arc<CudaStream>,
    copies: Arc<CudaStream>,
    lanes: [Option<Lane>; LANES],
    next: usize,
}

/// Memory for one upload at a time, here and there.
struct Lane {
    pinned: PinnedHostSlice<u8>,
    staging: CudaSlice<u8>,
    /// When the upload before had been fetched from `pinned`.
    arrived: Option<CudaEvent>,
    /// When the tensor of the upload before had been copied from `staging`.
    taken: Option<CudaEvent>,
}

impl Uploads {
    fn new(gpu: &CudaDevice) -> Result<Self> {
        let stream = gpu.cuda_stream();
        let copies = stream.context().new_stream().map_err(Error::wrap)?;
        Ok(Self { stream, copies, lanes: Default::default(), next: 0 })
    }

    /// Queues the copy of `bytes` to `there`, which is as large.
    fn send<T: DeviceRepr>(&mut self, bytes: &[u8], there: &mut CudaSlice<T>) -> Result<()> {
        let size = bytes.len();
        self.stream.context().bind_to_thread().map_err(Error::wrap)?;
        let lane = &mut self.lanes[self.next];
        self.next = (self.next + 1) % LANES;
        if let Some(arrived) = lane.as_ref().and_then(|lane| lane.arrived.as_ref()) {
            // Four uploads ago: as a rule that is done.
            arrived.synchronize().map_err(Error::wrap)?;
        }
        if lane.as_ref().is_none_or(|lane| lane.pinned.num_bytes() < size) {
            *lane = None;
        }
        let lane = match lane {
            Some(lane) => lane,
            None => lane.insert(Lane::new(&self.copies, size)?),
        };
        lane.pinned.as_mut_slice().map_err(Error::wrap)?[..size].copy_from_slice(bytes);
        if let Some(taken) = &lane.taken {
            self.copies.wait(taken).map_err(Error::wrap)?;
        }
        {
            // SAFETY: what is read there is read by work of this stream alone.
            let (pinned, _read) = unsafe { lane.pinned.stream_synced_slice(&self.copies) };
            let (staging, _written) = lane.staging.device_ptr_mut(&self.copies);
            // SAFETY: `staging` is as large as `pinned`, and nothing is written to that until this copy is done.
            unsafe { result::memcpy_htod_async(staging, &pinned[..size], self.copies.cu_stream()) }
                .map_err(Error::wrap)?;
        }
        let arrived = self.copies.record_event(None).map_err(Error::wrap)?;
        self.stream.wait(&arrived).map_err(Error::wrap)?;
        {
            let (staging, _read) = lane.staging.device_ptr(&self.stream);
            let (there, _written) = there.device_ptr_mut(&self.stream);
            // SAFETY: both are at least `size` bytes, and the stream has waited for what is in `staging`.
            unsafe { result::memcpy_dtod_async(there, staging, size, self.stream.cu_stream()) }
                .map_err(Error::wrap)?;
        }
        lane.arrived = Some(arrived);
        lane.taken = Some(self.stream.record_event(None).map_err(Error::wrap)?);
        Ok(())
    }
}

impl Drop for Lane {
    /// Waits until nothing is on its way through the lane: then its memory can be let go.
    fn drop(&mut self) {
        // Also a copy that was never taken, as what was to follow failed. If waiting fails, there is no work any more.
        let _ = self.staging.stream().synchronize();
        let _ = self.taken.as_ref().map(CudaEvent::synchronize);
    }
}

impl Lane {
    fn new(copies: &Arc<CudaStream>, size: usize) -> Result<Self> {
        // Batches of an epoch are of one size, but for the last.
        let size = size.next_power_of_two();
        // Ordinary but for being pinned. What cudarc has for it would be written past the caches (write-combined).
        let ordinary = 0;
        // SAFETY: it is written to before it is read, as far as it is read.
        let pinned = unsafe { copies.context().alloc_pinned_with_flags(size, ordinary) };
        let pinned = pinned.map_err(Error::wrap)?;
        // SAFETY: likewise.
        let staging = unsafe { copies.alloc(size) }.map_err(Error::wrap)?;
        Ok(Self { pinned, staging, arrived: None, taken: None })
    }
}
