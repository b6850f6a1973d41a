//! The products' place in a build without cuDNN, where convolutions are candle's: nothing gets here.

use candle_core::{CudaDevice, CudaStorage, Result, bail};

use super::Operand;
use super::pass::Pass;
use crate::conv2d::geometry::Geometry;

/// A product, in a build with cuDNN.
pub(crate) fn product(
    _: &CudaDevice,
    _: &Geometry,
    _: Pass,
    _: [Operand<'_, CudaStorage>; 2],
) -> Result<CudaStorage> {
    bail!("this program was built without cuDNN")
}
