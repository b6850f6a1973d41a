//! The mean of each plane, at the end of a network that takes images of any size.
//!
//! Cost: forward reads each element once, and backward writes each element once.

use candle_core::backend::BackendStorage as _;
use candle_core::op::ReduceOp;
use candle_core::{CpuStorage, DType, Layout, Result, Shape, Storage, Tensor, bail};

use super::element::{check_dtype, computed_in};
use crate::backward::record;
#[cfg(feature = "cuda")]
use crate::gpu::{Launch, Source, blocks_of, on_gpu, tensor};

/// Computes the mean over all pixels: `[B, C, H, W]` → `[B, C]`.
///
/// # Errors
///
/// When planes are empty, or `x` is none of f32, f64 and bf16.
pub fn global_avg_pool(x: &Tensor) -> Result<Tensor> {
    check_dtype(computed_in(x.dtype()), "global_avg_pool")?;
    let (batch, channels, height, width) = x.dims4()?;
    let pixels = height * width;
    if pixels == 0 {
        bail!("global_avg_pool: planes must have at least one pixel, got {height}×{width}");
    }
    let x = x.contiguous()?;
    let means = forward(&x, pixels)?;
    let x_shape = x.shape().clone();
    record("global_avg_pool", means, (batch, channels), [&x], move |_, dy| {
        Ok([Some(gradient(dy, &x_shape, pixels)?)])
    })
}

/// Computes the means of planes of so many `pixels`, for contiguous `x`.
fn forward(x: &Tensor, pixels: usize) -> Result<Storage> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let n = x.elem_count() / pixels;
        let means = on_gpu([x], |[x]| {
            Launch::new(x.gpu(), Source::Pooling, "global_avg_pool", x.dtype())
                .count(n)
                .count(pixels)
                .memory(x, n * pixels)
                .compute(n, blocks_of(n))
        });
        return means.map(Storage::Cuda);
    }
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("expected a tensor in CPU memory") };
    let planes = x.elem_count() / pixels;
    let mean = |x: &CpuStorage, from: usize| {
        let pixels_of_planes = Layout::contiguous_with_offset((planes, pixels), from);
        let sums = x.reduce_op(ReduceOp::Sum, &pixels_of_planes, &[1])?;
        sums.affine(&Layout::contiguous(planes), 1.0 / pixels as f64, 0.0)
    };
    Ok(Storage::Cpu(if x.dtype() == DType::BF16 {
        // The sum is in f32, and the mean is rounded once.
        let wide = storage.to_dtype(layout, DType::F32)?;
        mean(&wide, 0)?.to_dtype(&Layout::contiguous(planes), DType::BF16)?
    } else {
        mean(storage, layout.start_offset())?
    }))
}

/// Computes the gradient of the input, of this shape, from the gradient of the means.
fn gradient(dy: &Tensor, x: &Shape, pixels: usize) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if dy.device().is_cuda() {
        let n = x.elem_count();
        let dx = on_gpu([&dy.contiguous()?], |[dy]| {
            Launch::new(dy.gpu(), Source::Pooling, "global_avg_pool_gradient", dy.dtype())
                .count(n)
                .count(pixels)
                .memory(dy, n / pixels)
                .compute(n, blocks_of(n))
        })?;
        return Ok(tensor(dx, x));
    }
    let share = dy.affine(1.0 / pixels as f64, 0.0)?;
    share.unsqueeze(2)?.unsqueeze(3)?.broadcast_as(x)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn what_has_no_mean_of_its_type_is_refused() {
        let images = |dtype| Tensor::ones((2, 3, 4, 5), dtype, &Device::Cpu).unwrap();
        for dtype in [DType::U8, DType::U32, DType::I64, DType::F16] {
            let error = global_avg_pool(&images(dtype)).unwrap_err().to_string();
            assert!(error.starts_with("global_avg_pool: works on f32 and f64, not on"), "{error}");
        }
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let means = global_avg_pool(&images(dtype)).unwrap().to_dtype(DType::F64).unwrap();
            assert_eq!(means.to_vec2::<f64>().unwrap(), [[1.0; 3]; 2]);
        }
    }
}
