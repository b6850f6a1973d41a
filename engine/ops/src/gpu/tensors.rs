//! Launches on tensors that lie on a GPU.

use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Device, Result, Shape, Storage, Tensor, bail};
use itertools::Itertools as _;

use super::launch::Operand;

/// Calls `work` with the GPU that contiguous tensors lie on, and with their memory.
///
/// # Errors
///
/// When one lies elsewhere or is not contiguous, or that of `work`.
pub(crate) fn on_gpu<R, const N: usize>(
    tensors: [&Tensor; N],
    work: impl FnOnce(&CudaDevice, [Operand<'_, CudaStorage>; N]) -> Result<R>,
) -> Result<R> {
    let [first, ..] = tensors.as_slice() else { bail!("no tensor says on which GPU to work") };
    let Device::Cuda(device) = first.device() else { bail!("a tensor on a GPU was expected") };
    // A lock is taken once, even where a tensor is two operands: a writer may be waiting between the two.
    let apart: Vec<&Tensor> = tensors.into_iter().unique_by(|tensor| tensor.id()).collect();
    let memory: Vec<_> = apart.iter().map(|tensor| tensor.storage_and_layout()).collect();
    let mut operands = Vec::with_capacity(N);
    for tensor in tensors {
        let held = apart.iter().zip(&memory).find(|(other, _)| other.id() == tensor.id());
        match held.map(|(_, (storage, layout))| (&**storage, layout)) {
            Some((Storage::Cuda(storage), layout)) => operands.push(Operand::new(storage, layout)?),
            _ => bail!("all tensors of an operation must lie on its GPU"),
        }
    }
    match operands.try_into() {
        Ok(operands) => work(device, operands),
        Err(_) => bail!("there is an operand for each tensor"),
    }
}

/// The same tensor, contiguous and beginning where a vector of so many elements can.
pub(crate) fn aligned(tensor: &Tensor, vector: usize) -> Result<Tensor> {
    let tensor = tensor.contiguous()?;
    if tensor.layout().start_offset().is_multiple_of(vector) {
        Ok(tensor)
    } else {
        tensor.force_contiguous()
    }
}

/// A result as a tensor that carries no gradient.
pub(crate) fn tensor(storage: CudaStorage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
}
