//! cuDNN in a program without it.

use candle_core::{CudaStorage, Result, bail};

use super::geometry::{Geometry, Pass};
use crate::kernels::gpu::Operand;

/// Whether there is a cuDNN.
pub(super) const PRESENT: bool = false;

/// Fails: see the other `cudnn`.
pub(super) fn product(g: &Geometry, pass: Pass, of: [Operand<'_>; 2]) -> Result<CudaStorage> {
    bail!("this program has no cuDNN for {pass:?} of {of:?}: {g:?}")
}
