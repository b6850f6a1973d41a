//! What is to be computed.

use std::ffi::c_int;
use std::fmt;

use candle_core::cuda_backend::cudarc::cudnn::sys::cudnnMathType_t as Math;
use candle_core::{DType, Result, bail};

use super::Pass;
use crate::conv2d::geometry::Geometry;

/// Everything that decides how a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub(super) geometry: Geometry,
    pub(super) dtype: DType,
    pub(super) pass: Pass,
    /// The units that may multiply.
    pub(super) math: Math,
}

impl Product {
    /// Elements of the two operands, in the order in which [`Pass`] names them, and of the result.
    pub(super) fn lengths(&self) -> ([usize; 2], usize) {
        let g = &self.geometry;
        let (x, y) = (g.batch * g.image(), g.batch * g.out_image());
        let weight = g.out_channels * g.patch();
        match self.pass {
            Pass::Output | Pass::OutputForRelu => ([x, weight], y),
            Pass::InputGradient => ([weight, y], x),
            Pass::WeightGradient => ([x, y], weight),
        }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.pass {
            Pass::Output => "the output",
            Pass::OutputForRelu => "the output, with its zeros,",
            Pass::InputGradient => "the input's gradient",
            Pass::WeightGradient => "the kernel's gradient",
        };
        let g = &self.geometry;
        write!(
            f,
            "{what} of a convolution in {} of [{}, {}, {}, {}] with [{}, {}, {}, {}], stride {}, padding {}",
            self.dtype.as_str(),
            g.batch,
            g.in_channels,
            g.height,
            g.width,
            g.out_channels,
            g.in_channels,
            g.kernel_h,
            g.kernel_w,
            g.stride,
            g.padding
        )
    }
}

/// Sizes in the type that cuDNN counts with.
pub(super) fn counts<const N: usize>(sizes: [usize; N]) -> Result<[c_int; N]> {
    let mut counts = [0; N];
    for (count, size) in counts.iter_mut().zip(sizes) {
        match c_int::try_from(size) {
            Ok(size) => *count = size,
            Err(_) => bail!("cuDNN: a size of {size}, and it counts to {} only", c_int::MAX),
        }
    }
    Ok(counts)
}
