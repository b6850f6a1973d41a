//! The three products of a convolution, for memory of any type that kernels have.

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::CudaView;
use candle_core::{CudaDevice, CudaStorage, DType, Result, bail};
use half::bf16;

use super::Operand;
use super::cudnn;
use super::pass::Pass;
use crate::conv2d::geometry::Geometry;

type Memory<'a> = Operand<'a, CudaStorage>;

fn view<'a, T: CudaDType>(operand: &Memory<'a>) -> Result<CudaView<'a, T>> {
    let range = operand.start..operand.start + operand.elements;
    Ok(operand.storage.as_cuda_slice::<T>()?.slice(range))
}

/// A product of two operands, in the order in which [`Pass`] names them; an output is without a bias.
pub(crate) fn product(
    gpu: &CudaDevice,
    geometry: &Geometry,
    pass: Pass,
    operands: [Memory<'_>; 2],
) -> Result<CudaStorage> {
    match operands[0].dtype() {
        DType::F32 => of_type::<f32>(gpu, geometry, pass, operands),
        DType::F64 => of_type::<f64>(gpu, geometry, pass, operands),
        DType::BF16 => of_type::<bf16>(gpu, geometry, pass, operands),
        other => bail!("conv2d: works on f32, f64 and bf16, not on {other:?}"),
    }
}

fn of_type<T: cudnn::Number + CudaDType>(
    gpu: &CudaDevice,
    geometry: &Geometry,
    pass: Pass,
    [first, second]: [Memory<'_>; 2],
) -> Result<CudaStorage> {
    let operands = [&view(&first)?, &view(&second)?];
    let result = cudnn::product::<T>(gpu, geometry, pass, operands)?;
    Ok(CudaStorage::wrap_cuda_slice(result, gpu.clone()))
}
