//! The parameters of a unit as one row of numbers, which ranks share in chunks, gather and free.
//!
//! Layers and computation graphs hold the tensors of the parameters. So a parameter cannot be replaced by another
//! tensor. Its *memory* can: [`free`](Flat::free) takes the memory out of a tensor, and [`fill`](Flat::fill) puts
//! other memory in. All clones and views of the tensor see the change, also those that a graph keeps for its
//! backward pass.

use std::sync::Mutex;

use candle_core::backend::{BackendDevice as _, BackendStorage as _};
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{
    CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Result, Storage, Tensor, bail,
};
use harness::lock::locked;

// ANCHOR: flat
/// The parameters of a unit, in order, as one row.
pub struct Flat {
    tensors: Vec<Tensor>,
}

impl Flat {
    /// The row of these tensors, which stay whole.
    pub fn new(tensors: Vec<Tensor>) -> Self {
        Self { tensors }
    }

    /// The number of numbers in the row.
    pub fn len(&self) -> usize {
        self.tensors.iter().map(Tensor::elem_count).sum()
    }

    /// Whether the unit has no parameters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins the values of tensors: `[len]`. Fails when there are no tensors, or their types differ.
    pub fn join(tensors: &[Tensor]) -> Result<Tensor> {
        let rows = tensors.iter().map(|tensor| tensor.detach().flatten_all());
        Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
    }

    /// Joins the values of the parameters: `[len]`. Fails after [`free`](Self::free).
    pub fn row(&self) -> Result<Tensor> {
        Self::join(&self.tensors)
    }

    /// Cuts a row of `[len]` into the shapes of the parameters: views of the row.
    pub fn split(&self, row: &Tensor) -> Result<Vec<Tensor>> {
        let mut start = 0;
        let part = |tensor: &Tensor| {
            let part = row.narrow(0, start, tensor.elem_count())?.reshape(tensor.shape())?;
            start += tensor.elem_count();
            Ok(part)
        };
        self.tensors.iter().map(part).collect()
    }

    /// Gives the parameters the values of a row of `[len]`, in memory of their own. Fails when the row has another
    /// length or is on another device.
    pub fn fill(&self, row: &Tensor) -> Result<()> {
        if row.elem_count() != self.len() {
            bail!("a row of {} numbers for {} parameters", row.elem_count(), self.len());
        }
        for (tensor, part) in self.tensors.iter().zip(self.split(row)?) {
            let (memory, layout) = part.storage_and_layout();
            let copy = match &*memory {
                Storage::Cpu(memory) => Storage::Cpu(memory.to_dtype(layout, tensor.dtype())?),
                Storage::Cuda(memory) => Storage::Cuda(memory.to_dtype(layout, tensor.dtype())?),
                Storage::Metal(_) => bail!("no parameters on {:?}", tensor.device()),
            };
            tensor.inplace_op1(&Exchange(Mutex::new(copy)))?;
        }
        Ok(())
    }

    /// Frees the memory of the parameters. Any later read of a parameter is an error.
    pub fn free(&self) -> Result<()> {
        for tensor in &self.tensors {
            let nothing = match &*tensor.storage_and_layout().0 {
                Storage::Cpu(_) => Storage::Cpu(CpuStorage::F4(Vec::new())),
                Storage::Cuda(memory) => Storage::Cuda(nothing(memory)?),
                Storage::Metal(_) => bail!("no parameters on {:?}", tensor.device()),
            };
            tensor.inplace_op1(&Exchange(Mutex::new(nothing)))?;
        }
        Ok(())
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

/// Exchanges the memory of a tensor, of its clones and of its views for other memory.
struct Exchange(Mutex<Storage>);

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
