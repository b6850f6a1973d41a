//! The driver in a program without CUDA. There is no GPU to call it for.

use candle_core::{CudaDevice, Error, Result};

use super::kernel::{Argument, Kernel, Operand};

/// Fails: see the other `driver`.
///
/// # Safety
///
/// There are no conditions.
pub(super) unsafe fn queue(
    _: &CudaDevice,
    kernel: Kernel,
    _: &[Argument],
    _: &[Operand<'_>],
    _: usize,
) -> Result<()> {
    Err(Error::NotCompiledWithCudaSupport.context(format!("{kernel:?}")))
}
