//! The primary contexts of GPUs, kept until the program ends.
//!
//! A GPU's primary context holds the program's memory and kernels, and the libraries cuBLAS and cuDNN. The driver destroys
//! a context without users, which waits for the GPU, and creates a new one for the next user. Every open device uses the
//! context. Without this module, a program that opens devices one after the other would create a context for each.

use std::sync::{Arc, Mutex};

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::{Error, Result};

use super::pool;
use harness::lock::locked;

static KEPT: Mutex<Vec<Arc<CudaContext>>> = Mutex::new(Vec::new());

/// Returns the context of a GPU. The first call creates the context and makes the GPU keep freed memory.
pub(super) fn context(ordinal: usize) -> Result<Arc<CudaContext>> {
    let mut kept = locked(&KEPT);
    if let Some(context) = kept.iter().find(|context| context.ordinal() == ordinal) {
        return Ok(Arc::clone(context));
    }
    let context = CudaContext::new(ordinal).map_err(Error::wrap)?;
    pool::keep_memory(&context)?;
    kept.push(Arc::clone(&context));
    Ok(context)
}
