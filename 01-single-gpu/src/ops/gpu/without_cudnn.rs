//! The products' place in a build without cuDNN, where convolutions are candle's: nothing gets here.

use candle_core::{CudaDevice, CudaStorage, Result, bail};

use super::Operand;
use crate::ops::conv2d::geometry::Geometry;

macro_rules! absent {
    ($($product:ident),*) => {
        $(pub(in crate::ops) fn $product(
            _: &CudaDevice,
            _: &Geometry,
            _: Operand<'_, CudaStorage>,
            _: Operand<'_, CudaStorage>,
        ) -> Result<CudaStorage> {
            bail!("this program was built without cuDNN")
        })*
    };
}

absent!(output, output_for_relu, input_gradient, weight_gradient);
