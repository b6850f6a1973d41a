//! Uploads of batches to a GPU.
//!
//! A GPU can read only *pinned* memory of the CPU by itself. This module keeps its own pinned memory, so the processor goes
//! on as soon as it has written there. The upload has its own stream, so it overlaps with the kernels of the last step:
//!
//! ```text
//! processor        batch ─→ pinned
//! copy stream                 └──→ staging ───┐                  while kernels of the last step run
//! device's stream  … kernels of the last step └→ tensor, kernels of this step …
//! ```
//!
//! The last copy is within the GPU's memory and takes microseconds. With it, tensors own memory of the device's stream.
//! Four buffers are used in turn, for images and labels of two batches.

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

/// The largest upload in bytes that uses a buffer. Larger uploads are rare, and their buffers would take as much memory.
const LARGEST: usize = 16 << 20;

/// Copies a contiguous tensor from CPU memory to a GPU. Returns `None` for an element type that no batch has.
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
    let stored = there.map(Storage::Cuda);
    Ok(stored.map(|it| Tensor::from_storage(it, layout.shape(), BackpropOp::none(), false)))
}

fn sent<T: DeviceRepr + CudaDType>(values: &[T], gpu: &CudaDevice) -> Result<Option<CudaStorage>> {
    let size = size_of_val(values);
    if !(1..=LARGEST).contains(&size) {
        return Ok(None);
    }
    // SAFETY: the copy writes every byte. If the copy fails, no tensor gets the memory.
    let mut there = unsafe { gpu.alloc::<T>(values.len()) }?;
    // SAFETY: numbers have no padding.
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size) };
    UPLOADS.with_borrow_mut(|all| match all.entry(gpu.id()) {
        Entry::Occupied(uploads) => uploads.into_mut().send(bytes, &mut there),
        Entry::Vacant(place) => place.insert(Uploads::new(gpu)?).send(bytes, &mut there),
    })?;
    Ok(Some(CudaStorage::wrap_cuda_slice(there, gpu.clone())))
}

thread_local! {
    /// The uploads to each GPU that this thread uses.
    static UPLOADS: RefCell<HashMap<DeviceId, Uploads>> = RefCell::default();
}

const BUFFERS: usize = 4;

struct Uploads {
    stream: Arc<CudaStream>,
    /// The stream of copies from pinned memory.
    copies: Arc<CudaStream>,
    buffers: [Option<Buffer>; BUFFERS],
    next: usize,
}

/// Memory for one upload: pinned memory of the CPU, and staging memory of the GPU.
struct Buffer {
    pinned: PinnedHostSlice<u8>,
    staging: CudaSlice<u8>,
    /// The event after the last copy from `pinned`.
    arrived: Option<CudaEvent>,
    /// The event after the last copy from `staging`.
    taken: Option<CudaEvent>,
}

impl Uploads {
    fn new(gpu: &CudaDevice) -> Result<Self> {
        let stream = gpu.cuda_stream();
        let copies = stream.context().new_stream().map_err(Error::wrap)?;
        Ok(Self { stream, copies, buffers: Default::default(), next: 0 })
    }

    /// Queues the copy of `bytes` to `there`, which has the same size.
    fn send<T: DeviceRepr>(&mut self, bytes: &[u8], there: &mut CudaSlice<T>) -> Result<()> {
        let size = bytes.len();
        self.stream.context().bind_to_thread().map_err(Error::wrap)?;
        let buffer = &mut self.buffers[self.next];
        self.next = (self.next + 1) % BUFFERS;
        if let Some(arrived) = buffer.as_ref().and_then(|buffer| buffer.arrived.as_ref()) {
            // This copy was queued four uploads ago, so it is usually done.
            arrived.synchronize().map_err(Error::wrap)?;
        }
        let buffer = match buffer.take().filter(|buffer| buffer.pinned.num_bytes() >= size) {
            Some(large) => buffer.insert(large),
            None => buffer.insert(Buffer::new(&self.copies, size)?),
        };
        buffer.pinned.as_mut_slice().map_err(Error::wrap)?[..size].copy_from_slice(bytes);
        if let Some(taken) = &buffer.taken {
            self.copies.wait(taken).map_err(Error::wrap)?;
        }
        {
            // SAFETY: only work of this stream reads the pinned memory.
            let (pinned, _read) = unsafe { buffer.pinned.stream_synced_slice(&self.copies) };
            let (staging, _written) = buffer.staging.device_ptr_mut(&self.copies);
            // SAFETY: `staging` is as large as `pinned`, and nothing is written to `pinned` until this copy is done.
            unsafe { result::memcpy_htod_async(staging, &pinned[..size], self.copies.cu_stream()) }
                .map_err(Error::wrap)?;
        }
        let arrived = self.copies.record_event(None).map_err(Error::wrap)?;
        self.stream.wait(&arrived).map_err(Error::wrap)?;
        {
            let (staging, _read) = buffer.staging.device_ptr(&self.stream);
            let (there, _written) = there.device_ptr_mut(&self.stream);
            // SAFETY: both have at least `size` bytes, and the stream has waited for the copy to `staging`.
            unsafe { result::memcpy_dtod_async(there, staging, size, self.stream.cu_stream()) }
                .map_err(Error::wrap)?;
        }
        buffer.arrived = Some(arrived);
        buffer.taken = Some(self.stream.record_event(None).map_err(Error::wrap)?);
        Ok(())
    }
}

impl Drop for Buffer {
    /// Waits until no copy uses the memory, which is freed after that.
    fn drop(&mut self) {
        // The copy stream, too: if the second copy failed, `taken` says nothing about the first.
        let _ = self.staging.stream().synchronize();
        let _ = self.taken.as_ref().map(CudaEvent::synchronize);
    }
}

impl Buffer {
    fn new(copies: &Arc<CudaStream>, size: usize) -> Result<Self> {
        // All batches of an epoch but the last have one size.
        let size = size.next_power_of_two();
        // No flags: cudarc's own function allocates write-combined memory, which the processor writes past its caches.
        let no_flags = 0;
        // SAFETY: every byte is written before it is read.
        let pinned = unsafe { copies.context().alloc_pinned_with_flags(size, no_flags) };
        let pinned = pinned.map_err(Error::wrap)?;
        // SAFETY: every byte is written before it is read.
        let staging = unsafe { copies.alloc(size) }.map_err(Error::wrap)?;
        Ok(Self { pinned, staging, arrived: None, taken: None })
    }
}
