//! A forward result for an operation that only defines a backward pass.
//!
//! A tape node consists of a result and a rule for the gradients. Some results are computed
//! elsewhere, from several pieces or with communication in between, and only the rule is new. The
//! forward pass of such an operation has nothing to compute: it returns the result that it was
//! given.

use std::sync::Mutex;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, Layout, Result, Shape, Storage, Tensor, bail};

use harness::lock::locked;

/// A result that an operation's forward pass takes once.
///
/// The methods return a copy: candle treats all memory that an operation returns as the result's
/// own.
#[derive(Debug)]
pub struct Given(Mutex<Option<Tensor>>);

impl Given {
    /// Keeps a result of any shape, on any device. The memory of `result` must not change until the
    /// operation has taken the result.
    pub fn new(result: &Tensor) -> Self {
        Self(Mutex::new(Some(result.detach())))
    }

    fn take(&self) -> Result<Tensor> {
        match locked(&self.0).take() {
            Some(result) => Ok(result),
            None => bail!("a given result can be used once"),
        }
    }

    /// Takes the result as the output of an operation on the CPU.
    ///
    /// # Errors
    ///
    /// When the result was taken before, or is not in CPU memory.
    pub fn take_cpu(&self) -> Result<(CpuStorage, Shape)> {
        let result = self.take()?;
        let (storage, layout) = result.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) => Ok((copied(storage, layout)?, layout.shape().clone())),
            _ => bail!("a result on the CPU was to be given"),
        }
    }

    /// Takes the result as the output of an operation on a GPU.
    ///
    /// # Errors
    ///
    /// When the result was taken before, or is not in GPU memory.
    pub fn take_cuda(&self) -> Result<(CudaStorage, Shape)> {
        let result = self.take()?;
        let (storage, layout) = result.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => Ok((copied(storage, layout)?, layout.shape().clone())),
            _ => bail!("a result on a GPU was to be given"),
        }
    }
}

/// Copies the elements of a view to new memory, in the view's order.
fn copied<S: BackendStorage>(memory: &S, layout: &Layout) -> Result<S> {
    if layout.shape().elem_count() == 0 {
        // A kernel launch needs at least one element.
        return memory.try_clone(layout);
    }
    memory.to_dtype(layout, memory.dtype())
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn what_a_view_shows_is_given_once_in_memory_of_its_own() {
        let whole = Tensor::arange(0f64, 12.0, &Device::Cpu).unwrap().reshape((3, 4)).unwrap();
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            let whole = whole.to_dtype(dtype).unwrap();
            for view in
                [whole.t().unwrap().narrow(0, 1, 2).unwrap(), whole.narrow(0, 1, 0).unwrap()]
            {
                let given = Given::new(&view);
                let (memory, shape) = given.take_cpu().unwrap();
                assert_eq!(shape.dims(), view.dims());
                let found = memory.to_dtype(&Layout::contiguous(&shape), DType::F64).unwrap();
                let expected = view.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
                assert_eq!(found.as_slice::<f64>().unwrap(), expected.to_vec1::<f64>().unwrap());
                let again = given.take_cpu().unwrap_err().to_string();
                assert!(again.contains("can be used once"), "{again}");
            }
        }
    }
}
