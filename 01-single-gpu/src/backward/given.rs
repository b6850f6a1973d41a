//! An operation whose result is there already.
//!
//! A node of a computation graph is a result and a rule for the gradient. Sometimes the result is made
//! elsewhere, of several pieces or with a message in between, and only the rule is new. Then the forward
//! pass of an operation has nothing to compute: it hands over what it was given.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CudaStorage, Result, Shape, Storage, Tensor, bail};

/// A result that waits to be handed over, once.
#[derive(Debug)]
pub struct Given(Mutex<Option<Tensor>>);

impl Given {
    /// Keeps a copy of a result: any shape, on any device.
    ///
    /// # Errors
    ///
    /// When the copy fails.
    pub fn new(result: &Tensor) -> Result<Self> {
        // What is handed over is the whole memory behind the tensor, so it must be the tensor's alone.
        Ok(Self(Mutex::new(Some(result.detach().force_contiguous()?))))
    }

    fn take(&self) -> Result<Tensor> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
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
            Storage::Cpu(storage) => Ok((storage.clone(), layout.shape().clone())),
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
            Storage::Cuda(storage) => Ok((storage.try_clone(layout)?, layout.shape().clone())),
            _ => bail!("a result on a GPU was to be given"),
        }
    }
}
