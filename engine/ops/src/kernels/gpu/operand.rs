//! Tensors on a GPU as operands of kernels.

use candle_core::backend::BackendStorage as _;
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Result, Shape, Storage, Tensor, bail};

use crate::kernels::element::{self, lock};

/// The memory of a contiguous tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub(crate) storage: &'a CudaStorage,
    /// The number of the storage's elements before the tensor's first element.
    pub(crate) start: usize,
    pub(crate) elements: usize,
}

impl<'a> Operand<'a> {
    /// Makes an operand of a contiguous tensor's memory.
    pub(crate) fn new(storage: &'a CudaStorage, layout: &Layout) -> Result<Self> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("a kernel needs contiguous tensors, got strides {:?}", layout.stride());
        };
        Ok(Self { storage, start, elements: end - start })
    }

    /// Makes an operand of a whole storage, which was allocated for this number of elements.
    pub(crate) fn whole(storage: &'a CudaStorage, elements: usize) -> Self {
        Self { storage, start: 0, elements }
    }

    pub(crate) fn gpu(&self) -> &'a CudaDevice {
        self.storage.device()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.storage.dtype()
    }
}

/// Calls `work` with the memory of contiguous tensors on a GPU.
pub(crate) fn on_gpu<R, const N: usize>(
    tensors: [&Tensor; N],
    work: impl FnOnce([Operand<'_>; N]) -> Result<R>,
) -> Result<R> {
    on_gpu_all(&tensors, |operands| {
        let Ok(operands) = operands.try_into() else { bail!("one operand for each tensor") };
        work(operands)
    })
}

/// Does the same as [`on_gpu`] for any number of tensors.
pub(super) fn on_gpu_all<R>(
    tensors: &[&Tensor],
    work: impl FnOnce(Vec<Operand<'_>>) -> Result<R>,
) -> Result<R> {
    let locked = lock(tensors);
    let operands = locked.memory().map(|(storage, layout)| match storage {
        Storage::Cuda(storage) => Operand::new(storage, layout),
        _ => bail!("all tensors of an operation must lie on its GPU"),
    });
    work(operands.collect::<Result<_>>()?)
}

/// Makes a tensor without a gradient from a result.
pub(crate) fn tensor(storage: CudaStorage, shape: impl Into<Shape>) -> Tensor {
    element::tensor(Storage::Cuda(storage), shape)
}

/// Returns the tensor contiguous, with a start that is aligned for vectors of so many elements.
pub(crate) fn aligned(tensor: &Tensor, vector: usize) -> Result<Tensor> {
    let tensor = tensor.contiguous()?;
    if tensor.layout().start_offset().is_multiple_of(vector) {
        Ok(tensor)
    } else {
        tensor.force_contiguous()
    }
}

/// Copies a contiguous tensor.
pub(crate) fn copy(x: &Tensor) -> Result<CudaStorage> {
    on_gpu([x], |[of_x]| of_x.storage.to_dtype(x.layout(), x.dtype()))
}

/// Multiplies two contiguous matrices, `[M, K]` and `[K, N]`, with cuBLAS.
pub(crate) fn product(a: &Tensor, b: &Tensor) -> Result<CudaStorage> {
    let ((m, k), (_, n)) = (a.dims2()?, b.dims2()?);
    on_gpu([a, b], |[of_a, of_b]| {
        of_a.storage.matmul(of_b.storage, (1, m, n, k), a.layout(), b.layout())
    })
}
