//! An operation whose result is there already.
//!
//! A node of a computation graph is a result and a rule for the gradient. Sometimes the result is made
//! elsewhere, of several pieces or with a message in between, and only the rule is new. Then the forward
//! pass of an operation has nothing to compute: it hands over what it was given.

use std::sync::Mutex;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, Layout, Result, Shape, Storage, Tensor, bail};

use harness::lock::locked;

/// A result that waits to be handed over, once. It is handed over as a copy: what an operation gives is the whole memory
/// behind its result, and so must be the result's alone.
#[derive(Debug)]
pub struct Given(Mutex<Option<Tensor>>);

impl Given {
    /// Keeps a result: any shape, on any device. Until it is handed over, nobody is to write to it.
    pub fn new(result: &Tensor) -> Self {
        Self(Mutex::new(Some(result.detach())))
    }

    fn take(&self) -> Result<Tensor> {
        match locked(&self.0).take() {
            Some(result) => Ok(result),
            None => bail!("a given result can be used once"),
        }
    }

    /// The result of an operation on the CPU.
    ///
    /// # Errors
    ///
    /// When it was handed over before, or lies elsewhere.
    pub fn take_cpu(&self) -> Result<(CpuStorage, Shape)> {
        let result = self.take()?;
        let (storage, layout) = result.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) => Ok((copied(storage, layout)?, layout.shape().clone())),
            _ => bail!("a result on the CPU was to be given"),
        }
    }

    /// The result of an operation on a GPU.
    ///
    /// # Errors
    ///
    /// When it was handed over before, or lies elsewhere.
    pub fn take_cuda(&self) -> Result<(CudaStorage, Shape)> {
        let result = self.take()?;
        let (storage, layout) = result.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => Ok((copied(storage, layout)?, layout.shape().clone())),
            _ => bail!("a result on a GPU was to be given"),
        }
    }
}

/// What a tensor shows of its memory, in memory of its own, in the order in which it shows it.
fn copied<S: BackendStorage>(memory: &S, layout: &Layout) -> Result<S> {
    if layout.shape().elem_count() == 0 {
        // A kernel cannot be launched for nothing.
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
