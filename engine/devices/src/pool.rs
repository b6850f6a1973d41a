//! The memory pool of a GPU, which keeps memory from step to step.

#![expect(
    unsafe_code,
    reason = "cudarc has the driver's calls for memory pools, and no safe face for them"
)]

use candle_core::cuda_backend::cudarc::driver::{CudaContext, result, sys};
use candle_core::{Error, Result};

/// Makes the GPU's pool keep freed memory until the process ends.
///
/// By default the driver returns unused memory to the system whenever the program waits for the GPU. A step that reads its
/// loss waits, and then the next step would allocate all memory from the system again.
pub(super) fn keep_memory(context: &CudaContext) -> Result<()> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    context.bind_to_thread().map_err(Error::wrap)?;
    let mut everything = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device belongs to the context, the pool belongs to the device, and the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_mem_pool(context.cu_device()).map_err(Error::wrap)?;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut everything).cast())
    }
    .map_err(Error::wrap)
}
