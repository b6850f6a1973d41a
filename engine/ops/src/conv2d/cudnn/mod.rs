//! The three products of a convolution, by cuDNN: its output, and the gradients of its input and of its kernel.
//!
//! cuDNN has several algorithms for each. Which one is the best depends on the shape, and some add up in an order that
//! differs from run to run. So the one that is taken here
//!
//! - **depends on the shape alone**: cuDNN's heuristics rank them, except that transforms which were measured to pay come
//!   first; nothing is timed. Another GPU or another cuDNN may rank them differently. If cuDNN then refuses to run the one
//!   that it suggested, the next one is taken, by this thread and all that ask later, and at last those that every shape
//!   has;
//! - **is deterministic**: the same operands give the same bits, again and again;
//! - **keeps zeros** where a rectifier follows: Winograd's and Fourier's transforms make nearly zero of them. Nor are
//!   they taken in bf16, where nobody says in what type they transform;
//! - **rounds no more than was asked for**: f32 is multiplied on tensor cores, as TF32, where candle's switch for
//!   matrix products says so ([`gemm_reduced_precision_f32`]), and nowhere else.
//!
//! Two variables of the environment are for measuring, if they are 1: with `COURSE_CUDNN_TELL` a program tells on stderr
//! what cuDNN suggests for each product, and what is taken; with `COURSE_CUDNN_ANY_ORDER` it also takes what is not
//! deterministic.
//!
//! cudarc's own convolutions take the first algorithm of the list, whatever it is, so this is written on the layer
//! below them.
//!
//! | file | its idea |
//! | --- | --- |
//! | `product` | what is to be computed: sizes, element type, which of the three |
//! | `descriptors` | the same, as cuDNN wants it told |
//! | `algorithm` | what cuDNN is asked: algorithms, their memory, and to run one |
//! | `choice` | which algorithm it will be: a rule about lists |
//! | `transform` | which algorithms transform, and for which products that pays |
//! | `plan` | what is chosen for a product, once in a process for each GPU |
//! | `session` | what a thread keeps for a device: the handle, plans, memory to work in |

mod algorithm;
mod choice;
mod descriptors;
mod plan;
mod product;
mod session;
#[cfg(test)]
mod tests;
mod transform;

use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnDataType_t as DataType, cudnnMathType_t as Math,
};
use candle_core::cuda_backend::cudarc::cudnn::{CudnnDataType, CudnnError};
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaView, DeviceRepr, DeviceSlice, ValidAsZeroBits,
};
use candle_core::cuda_backend::{CudaDType, CudaDevice, gemm_reduced_precision_f32};
use candle_core::{CudaStorage, DType, Error, Result, WithDType, bail};
use half::bf16;

use super::geometry::Geometry;
use crate::gpu::Operand;
use product::Product;

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
pub(super) trait Number: WithDType + CudnnDataType + DeviceRepr + ValidAsZeroBits {
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

/// A product of two operands, in the order in which [`Pass`] names them; an output is without a bias.
///
/// # Errors
///
/// Those of [`of_type`], and for a type that cuDNN does not convolve.
pub(super) fn product(
    geometry: &Geometry,
    pass: Pass,
    operands: [Operand<'_>; 2],
) -> Result<CudaStorage> {
    match operands[0].dtype() {
        DType::F32 => of_operands::<f32>(geometry, pass, operands),
        DType::F64 => of_operands::<f64>(geometry, pass, operands),
        DType::BF16 => of_operands::<bf16>(geometry, pass, operands),
        other => bail!("conv2d: works on f32, f64 and bf16, not on {other:?}"),
    }
}

fn of_operands<T: Number + CudaDType>(
    geometry: &Geometry,
    pass: Pass,
    operands: [Operand<'_>; 2],
) -> Result<CudaStorage> {
    fn view<'a, T: CudaDType>(operand: &Operand<'a>) -> Result<CudaView<'a, T>> {
        let range = operand.start..operand.start + operand.elements;
        Ok(operand.storage.as_cuda_slice::<T>()?.slice(range))
    }
    let gpu = operands[0].gpu();
    let [first, second] = &operands;
    let result = of_type::<T>(gpu, geometry, pass, [&view(first)?, &view(second)?])?;
    Ok(CudaStorage::wrap_cuda_slice(result, gpu.clone()))
}

/// A product of operands that lie contiguous in the memory of `device`, in the order in which [`Pass`] names them.
///
/// # Errors
///
/// When there are no images (but for the kernel's gradient), when a view has not the elements that `geometry` says, when
/// a size is beyond what cuDNN counts with, when it has no algorithm as the module asks for, and when cuDNN or CUDA fails.
fn of_type<T: Number>(
    device: &CudaDevice,
    geometry: &Geometry,
    pass: Pass,
    operands: [&CudaView<'_, T>; 2],
) -> Result<CudaSlice<T>> {
    let product = Product { geometry: *geometry, dtype: T::DTYPE, pass, math: T::math() };
    let (expected, len) = product.lengths();
    let found = operands.map(CudaView::len);
    if found != expected {
        bail!("cuDNN: {product} takes {expected:?} elements, not {found:?}");
    }
    // Work of one stream is done in its order, and nothing else has to see to that.
    let stream = device.cuda_stream();
    if operands.iter().any(|operand| *operand.stream() != stream) {
        bail!("cuDNN: {product}: an operand is of another device");
    }
    match (geometry.batch, pass) {
        (0, Pass::WeightGradient) => device.alloc_zeros(len),
        // GPUs have no memory of size 0.
        (0, _) => bail!("cuDNN: {product} has no images"),
        _ => session::compute(device, &product, operands, len),
    }
}

/// What cuDNN answered, with what it was asked.
fn refused(what: impl std::fmt::Display, CudnnError(status): CudnnError) -> Error {
    Error::Msg(format!("cuDNN: {what}: {status:?}")).bt()
}
