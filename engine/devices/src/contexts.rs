//! GPUs' contexts, kept until the program ends.
//!
//! What a program has on a GPU lies in that GPU's primary context: memory, kernels, what cuBLAS and cuDNN have loaded. The
//! driver takes it down as soon as nobody holds it, which waits for the GPU, and makes it anew for the next who asks. A
//! device holds it while it is open; a program that opens one after the other would wait for all of that each time.

use std::sync::{Arc, Mutex};

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::{Error, Result};

use super::pool;
use harness::lock::locked;

static KEPT: Mutex<Vec<Arc<CudaContext>>> = Mutex::new(Vec::new());

/// The context of a GPU, which keeps its memory from the first time on that it is asked for.
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
