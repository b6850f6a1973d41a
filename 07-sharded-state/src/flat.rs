//! The parameters of a unit as one row of numbers, which ranks share in chunks, gather and free.
//!
//! Layers and computation graphs hold the tensors of the parameters. So a parameter cannot be replaced by another
//! tensor. The tensors are views of one [row](concise_wrapper::Network::row), and its *memory* can be exchanged:
//! [`free`] takes the memory out of the row, and [`fill`] puts other memory in. All views and clones see the change,
//! also those that a graph keeps for its backward pass.

use std::sync::Mutex;

use candle_core::backend::{BackendDevice as _, BackendStorage as _};
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{
    CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Result, Storage, Tensor, bail,
};
use harness::lock::locked;

// ANCHOR: flat
/// Joins the values of tensors in a row. Fails when there are no tensors, or their types differ.
pub fn join(tensors: &[Tensor]) -> Result<Tensor> {
    let rows = tensors.iter().map(|tensor| tensor.detach().flatten_all());
    Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
}

/// Cuts a row into the shapes of tensors, in order: views of the row.
pub fn split<'a>(row: &Tensor, of: impl IntoIterator<Item = &'a Tensor>) -> Result<Vec<Tensor>> {
    let mut start = 0;
    let part = |tensor: &Tensor| {
        let part = row.narrow(0, start, tensor.elem_count())?.reshape(tensor.shape())?;
        start += tensor.elem_count();
        Ok(part)
    };
    of.into_iter().map(part).collect()
}

/// Gives a row, and the parameters that are views of it, the memory of `values`, which is freed. Nothing is copied.
/// Fails when `values` is a view, or has another length, type or device.
pub fn fill(row: &Tensor, values: &Tensor) -> Result<()> {
    let kind = |tensor: &Tensor| (tensor.elem_count(), tensor.dtype(), tensor.device().location());
    if kind(row) != kind(values) || values.layout() != &Layout::contiguous(row.elem_count()) {
        bail!("{:?} for a row of {:?}", kind(values), kind(row));
    }
    let memory = Exchange::nothing(values)?;
    values.inplace_op1(&memory)?;
    row.inplace_op1(&memory)
}

/// Frees the memory of a row. Any later read of a parameter is an error.
pub fn free(row: &Tensor) -> Result<()> {
    row.inplace_op1(&Exchange::nothing(row)?)
}

/// Exchanges the memory of a tensor, of its clones and of its views for other memory, and keeps the memory before.
struct Exchange(Mutex<Storage>);

impl Exchange {
    /// Memory for a tensor that is not read any more.
    fn nothing(tensor: &Tensor) -> Result<Self> {
        let nothing = match &*tensor.storage_and_layout().0 {
            Storage::Cpu(_) => Storage::Cpu(CpuStorage::F4(Vec::new())),
            Storage::Cuda(memory) => Storage::Cuda(nothing(memory)?),
            Storage::Metal(_) => bail!("no parameters on {:?}", tensor.device()),
        };
        Ok(Self(Mutex::new(nothing)))
    }
}

/// A byte of a type that nothing computes with: every operation refuses it. Of another type, an operation would read
/// beyond it.
fn nothing(memory: &CudaStorage) -> Result<CudaStorage> {
    let byte = memory.device().zeros_impl(&1.into(), DType::U8)?;
    #[cfg(feature = "cuda")]
    if let CudaStorageSlice::U8(slice) = byte.slice {
        return Ok(CudaStorage { slice: CudaStorageSlice::F4(slice), device: byte.device });
    }
    Ok(byte)
}

impl InplaceOp1 for Exchange {
    fn name(&self) -> &'static str {
        "exchange"
    }

    fn cpu_fwd(&self, memory: &mut CpuStorage, _: &Layout) -> Result<()> {
        match &mut *locked(&self.0) {
            Storage::Cpu(other) => std::mem::swap(memory, other),
            _ => bail!("a tensor in CPU memory gets CPU memory"),
        }
        Ok(())
    }

    fn cuda_fwd(&self, memory: &mut CudaStorage, _: &Layout) -> Result<()> {
        match &mut *locked(&self.0) {
            Storage::Cuda(other) => std::mem::swap(memory, other),
            _ => bail!("a tensor in GPU memory gets GPU memory"),
        }
        Ok(())
    }
}
// ANCHOR_END: flat
