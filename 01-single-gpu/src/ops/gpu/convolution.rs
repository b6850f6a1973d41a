//! The three products of a convolution, for memory of any type that kernels have.

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::CudaView;
use candle_core::{CudaDevice, CudaStorage, DType, Result, bail};
use half::bf16;

use super::Operand;
use super::cudnn;
use crate::ops::conv2d::geometry::Geometry;

type Memory<'a> = Operand<'a, CudaStorage>;

fn view<'a, T: CudaDType>(operand: &Memory<'a>) -> Result<CudaView<'a, T>> {
    let range = operand.start..operand.start + operand.elements;
    Ok(operand.storage.as_cuda_slice::<T>()?.slice(range))
}

/// A function that calls cuDNN's of the same name for the type of its operands.
macro_rules! product {
    ($(#[doc = $doc:literal])* $name:ident) => {
        $(#[doc = $doc])*
        pub(in crate::ops) fn $name(
            gpu: &CudaDevice,
            geometry: &Geometry,
            first: Memory<'_>,
            second: Memory<'_>,
        ) -> Result<CudaStorage> {
            fn of_type<T: cudnn::Number + CudaDType>(
                gpu: &CudaDevice,
                geometry: &Geometry,
                [first, second]: [Memory<'_>; 2],
            ) -> Result<CudaStorage> {
                let result = cudnn::$name::<T>(gpu, geometry, &view(&first)?, &view(&second)?)?;
                Ok(CudaStorage::wrap_cuda_slice(result, gpu.clone()))
            }
            let operands = [first, second];
            match first.dtype() {
                DType::F32 => of_type::<f32>(gpu, geometry, operands),
                DType::F64 => of_type::<f64>(gpu, geometry, operands),
                DType::BF16 => of_type::<bf16>(gpu, geometry, operands),
                other => bail!("conv2d: works on f32, f64 and bf16, not on {other:?}"),
            }
        }
    };
}

product! {
    /// The output, from input and kernel, without a bias.
    output
}
product! {
    /// The same, with exactly 0 where nothing but zeros is seen.
    output_for_relu
}
product! {
    /// The gradient of the input, from the kernel and the output's gradient.
    input_gradient
}
product! {
    /// The gradient of the kernel, from the input and the output's gradient.
    weight_gradient
}
