//! The three products of a convolution, by cuDNN: its output, and the gradients of its input and of its kernel.
//!
//! cuDNN has several algorithms for each. Which one is the best depends on the shape, and some add up in an order that
//! differs from run to run. So the algorithm that is taken here
//!
//! - **depends on the shape alone**: cuDNN's heuristics rank the algorithms, except that transforms which were measured to
//!   pay come first; nothing is timed. Another GPU or another cuDNN may rank them differently;
//! - **is deterministic**: the same operands give the same bits, again and again;
//! - **needs at most 1 GiB** of memory to work in;
//! - **keeps zeros** where a relu follows: Winograd's and Fourier's transforms make nearly zero of them. Nor are they taken
//!   in bf16, as nobody documents in what type they transform;
//! - **rounds no more than was asked for**: f32 is multiplied on tensor cores, as TF32, where candle's switch for
//!   matrix products says so ([`gemm_reduced_precision_f32`]), and nowhere else.
//!
//! With `COURSE_CUDNN_TELL=1` in the environment each thread prints on stderr what cuDNN suggests for each product, and what
//! is taken.
//!
//! cudarc's own convolutions take the first algorithm of the list, whatever it is, so this is written on the layer
//! below them.
//!
//! | file | its idea |
//! | --- | --- |
//! | `choice` | which algorithm computes a product: a rule |
//! | `session` | what a thread keeps for a device: cuDNN's handle, a plan for each product, memory to work in |
//! | `descriptors` | sizes and types as cuDNN takes them |
//! | `algorithm` | cuDNN's functions: algorithms, their memory, and to run one |

mod algorithm;
mod choice;
mod descriptors;
mod session;
#[cfg(test)]
mod tests;

use std::fmt;

use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnDataType_t as DataType, cudnnMathType_t as Math,
};
use candle_core::cuda_backend::cudarc::cudnn::{CudnnDataType, CudnnError};
use candle_core::cuda_backend::cudarc::driver::{CudaView, DeviceRepr, ValidAsZeroBits};
use candle_core::cuda_backend::{CudaDType, gemm_reduced_precision_f32};
use candle_core::{CudaStorage, DType, Error, Result, WithDType, bail};
use half::bf16;

use super::geometry::Geometry;
use crate::gpu::Operand;

/// Which of a convolution's three products, of which operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    /// The output, `[B, O, H', W']`, of the input, `[B, C, H, W]`, and the kernel, `[O, C, KH, KW]`.
    Output,
    /// The same, for a relu: what sees nothing but zeros is zero, never nearly zero, as its slope changes there.
    OutputForRelu,
    /// The gradient of the input, from the kernel and the output's gradient.
    InputGradient,
    /// The gradient of the kernel, from the input and the output's gradient; zeros without images.
    WeightGradient,
}

/// A number that cuDNN convolves.
pub(super) trait Number:
    WithDType + CudaDType + CudnnDataType + DeviceRepr + ValidAsZeroBits
{
    /// What products are added up in.
    const SUMS: DataType;

    /// The units that may multiply.
    fn math() -> Math;
}

impl Number for f32 {
    const SUMS: DataType = DataType::CUDNN_DATA_FLOAT;

    fn math() -> Math {
        if gemm_reduced_precision_f32() { Math::CUDNN_DEFAULT_MATH } else { Math::CUDNN_FMA_MATH }
    }
}

impl Number for f64 {
    const SUMS: DataType = DataType::CUDNN_DATA_DOUBLE;

    fn math() -> Math {
        Math::CUDNN_DEFAULT_MATH
    }
}

impl Number for bf16 {
    const SUMS: DataType = DataType::CUDNN_DATA_FLOAT;

    /// Tensor cores, on every GPU that has bf16. The default leaves them out for 16 bits: a step of ResNet-18 on an H200 took
    /// 190 ms with it, and takes 7 to 10.
    fn math() -> Math {
        Math::CUDNN_TENSOR_OP_MATH
    }
}

/// Everything that decides how a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Product {
    geometry: Geometry,
    dtype: DType,
    pass: Pass,
    /// The units that may multiply.
    math: Math,
}

impl Product {
    /// Elements of the two operands, in the order in which [`Pass`] names them, and of the result.
    fn lengths(&self) -> ([usize; 2], usize) {
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

/// A product of two operands, in the order in which [`Pass`] names them; an output is without a bias.
///
/// # Errors
///
/// When there are no images (but for the kernel's gradient), when the operands are not of one GPU and type or have not the
/// elements that `geometry` says, when a size is beyond what cuDNN counts with, when it has no algorithm as the module asks
/// for, and when cuDNN or CUDA fails.
pub(super) fn product(
    geometry: &Geometry,
    pass: Pass,
    operands: [Operand<'_>; 2],
) -> Result<CudaStorage> {
    match operands[0].dtype() {
        DType::F32 => of_type::<f32>(geometry, pass, operands),
        DType::F64 => of_type::<f64>(geometry, pass, operands),
        DType::BF16 => of_type::<bf16>(geometry, pass, operands),
        other => bail!("conv2d: works on f32, f64 and bf16, not on {other:?}"),
    }
}

fn of_type<T: Number>(
    geometry: &Geometry,
    pass: Pass,
    operands: [Operand<'_>; 2],
) -> Result<CudaStorage> {
    fn view<'a, T: CudaDType>(operand: &Operand<'a>) -> Result<CudaView<'a, T>> {
        let range = operand.start..operand.start + operand.elements;
        Ok(operand.storage.as_cuda_slice::<T>()?.slice(range))
    }
    let product = Product { geometry: *geometry, dtype: T::DTYPE, pass, math: T::math() };
    let (expected, len) = product.lengths();
    let found = operands.map(|operand| operand.elements);
    if found != expected {
        bail!("cuDNN: {product} takes {expected:?} elements, not {found:?}");
    }
    let gpu = operands[0].gpu();
    // Work of one stream is done in its order, and nothing else has to see to that.
    if operands[1].gpu().id() != gpu.id() {
        bail!("cuDNN: {product}: an operand is of another device");
    }
    let result = match (geometry.batch, pass) {
        (0, Pass::WeightGradient) => gpu.alloc_zeros::<T>(len)?,
        // GPUs have no memory of size 0.
        (0, _) => bail!("cuDNN: {product} has no images"),
        _ => {
            let operands = [&view::<T>(&operands[0])?, &view::<T>(&operands[1])?];
            session::compute(gpu, &product, operands, len)?
        }
    };
    Ok(CudaStorage::wrap_cuda_slice(result, gpu.clone()))
}

/// cuDNN's refusal, with what it was asked for.
fn refused(what: impl std::fmt::Display, CudnnError(status): CudnnError) -> Error {
    Error::Msg(format!("cuDNN: {what}: {status:?}")).bt()
}
