//! The three products of a convolution, by cuDNN: its output, and the gradients of its input and of
//! its kernel.
//!
//! cuDNN has several algorithms for each product. The fastest algorithm depends on the shape, and
//! some algorithms add up in an order that differs from run to run. The choice here has five
//! properties:
//!
//! - **It depends on the shape alone.** cuDNN's heuristics rank the algorithms, except that
//!   transforms which were measured to pay come first. Nothing is timed. Another GPU or another
//!   version of cuDNN may rank the algorithms differently.
//! - **It is deterministic.** The same operands give the same bits, again and again.
//! - **It needs at most 1 GiB** of workspace.
//! - **It keeps zeros** before a relu: Winograd's and Fourier's transforms turn zeros into nearly
//!   zero. These transforms are not used in bf16 either, because their intermediate type is not
//!   documented.
//! - **It rounds no more than the caller allows.** Tensor cores multiply f32, as TF32, only if
//!   candle's switch for matrix products allows it ([`gemm_reduced_precision_f32`]).
//!
//! If `COURSE_CUDNN_TELL=1` is in the environment, each thread prints cuDNN's suggestions and the
//! choice for each product on stderr.
//!
//! cudarc's own convolutions take the first algorithm of the list, whatever its properties. This
//! module therefore uses the layer below them.
//!
//! | file | its idea |
//! | --- | --- |
//! | `choice` | the rule that chooses an algorithm for a product |
//! | `session` | a thread's state for a device: a handle, a plan for each product, a workspace |
//! | `descriptors` | sizes and types as cuDNN's descriptors |
//! | `algorithm` | cuDNN's functions: algorithms, their workspace, and the call that runs one |

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

/// One of a convolution's three products, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    /// The output, `[B, O, H', W']`, from the input, `[B, C, H, W]`, and the kernel,
    /// `[O, C, KH, KW]`.
    Output,
    /// The output before a relu: a patch of zeros gives exactly zero, never nearly zero, because
    /// the slope of the relu changes there.
    OutputForRelu,
    /// The gradient of the input, from the kernel and the output's gradient.
    InputGradient,
    /// The gradient of the kernel, from the input and the output's gradient; zeros without images.
    WeightGradient,
}

/// An element type that cuDNN convolves.
pub(super) trait Number:
    WithDType + CudaDType + CudnnDataType + DeviceRepr + ValidAsZeroBits
{
    /// The type in which products are added up.
    const SUMS: DataType;

    /// The math that cuDNN may use.
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

    /// Tensor cores, on every GPU that has bf16.
    ///
    /// cuDNN's default math does not use tensor cores for 16 bits. A step of ResNet-18 on an H200
    /// took 190 ms with the default, and takes 7 to 10 ms with tensor cores.
    fn math() -> Math {
        Math::CUDNN_TENSOR_OP_MATH
    }
}

/// All inputs of the choice of an algorithm for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Product {
    geometry: Geometry,
    dtype: DType,
    pass: Pass,
    /// The math that cuDNN may use.
    math: Math,
}

impl Product {
    /// Returns the number of elements of the two operands, in the order in which [`Pass`] names
    /// them, and of the result.
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

/// Computes a product of two operands, in the order in which [`Pass`] names them. An output has no
/// bias yet.
///
/// # Errors
///
/// - When there are no images, except for the kernel's gradient.
/// - When the operands are on different GPUs, differ in type or do not have the sizes of
///   `geometry`.
/// - When a size exceeds cuDNN's integer type.
/// - When cuDNN has no algorithm with the properties that the module requires.
/// - When cuDNN or CUDA fails.
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
    // All memory belongs to one stream, whose order is the only synchronisation.
    if operands[1].gpu().id() != gpu.id() {
        bail!("cuDNN: {product}: an operand is of another device");
    }
    let result = match (geometry.batch, pass) {
        (0, Pass::WeightGradient) => gpu.alloc_zeros::<T>(len)?,
        // GPUs cannot allocate memory of size 0.
        (0, _) => bail!("cuDNN: {product} has no images"),
        _ => {
            let operands = [&view::<T>(&operands[0])?, &view::<T>(&operands[1])?];
            session::compute(gpu, &product, operands, len)?
        }
    };
    Ok(CudaStorage::wrap_cuda_slice(result, gpu.clone()))
}

/// Makes an error from cuDNN's status and a description of the call.
fn refused(what: impl std::fmt::Display, CudnnError(status): CudnnError) -> Error {
    Error::Msg(format!("cuDNN: {what}: {status:?}")).bt()
}
