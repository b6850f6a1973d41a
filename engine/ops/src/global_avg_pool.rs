//! The mean of each plane, at the end of a network that takes images of any size.
//!
//! Cost: forward reads each element once, and backward writes each element once.

use candle_core::backend::BackendStorage as _;
use candle_core::op::ReduceOp;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};

use super::element::{check_dtype, computed_in};
use crate::backward::apply1;
#[cfg(feature = "cuda")]
use {
    crate::gpu::{Launch, Operand, Source, blocks_of, on_gpu, tensor},
    candle_core::CudaStorage,
};

/// Computes the mean over all pixels: `[B, C, H, W]` → `[B, C]`.
///
/// # Errors
///
/// When planes are empty, or `x` is none of f32, f64 and bf16.
pub fn global_avg_pool(x: &Tensor) -> Result<Tensor> {
    check_dtype(computed_in(x.dtype()), "global_avg_pool")?;
    let (_, _, height, width) = x.dims4()?;
    if height * width == 0 {
        bail!("global_avg_pool: planes must have at least one pixel, got {height}×{width}");
    }
    apply1(&x.contiguous()?, GlobalAvgPool { pixels: height * width })
}

struct GlobalAvgPool {
    pixels: usize,
}

impl GlobalAvgPool {
    /// Returns the shape of the output for images of this layout.
    fn shape(&self, layout: &Layout) -> Result<Shape> {
        let (batch, channels, _, _) = layout.shape().dims4()?;
        Ok((batch, channels).into())
    }
}

impl CustomOp1 for GlobalAvgPool {
    fn name(&self) -> &'static str {
        "global_avg_pool"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = self.shape(layout)?;
        let (batch, channels) = shape.dims2()?;
        let planes = (batch, channels, self.pixels);
        let mean = |x: &CpuStorage, from: usize| {
            let planes = Layout::contiguous_with_offset(planes, from);
            let sums = x.reduce_op(ReduceOp::Sum, &planes, &[2])?;
            sums.affine(&Layout::contiguous(&shape), 1.0 / self.pixels as f64, 0.0)
        };
        let mean = if x.dtype() == DType::BF16 {
            // The sum is in f32, and the mean is rounded once.
            let wide = x.to_dtype(layout, DType::F32)?;
            mean(&wide, 0)?.to_dtype(&Layout::contiguous(&shape), DType::BF16)?
        } else {
            mean(x, layout.start_offset())?
        };
        Ok((mean, shape))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let shape = self.shape(layout)?;
        let n = shape.elem_count();
        let mean = Launch::new(x.device(), Source::Pooling, "global_avg_pool", x.dtype())
            .count(n)
            .count(self.pixels)
            .memory(Operand::new(x, layout)?, n * self.pixels)
            .compute(n, blocks_of(n))?;
        Ok((mean, shape))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        #[cfg(feature = "cuda")]
        if gradient.device().is_cuda() {
            let dx = on_gpu([&gradient.contiguous()?], |[gradient]| {
                let (gpu, dtype, n) = (gradient.gpu(), gradient.dtype(), x.elem_count());
                Launch::new(gpu, Source::Pooling, "global_avg_pool_gradient", dtype)
                    .count(n)
                    .count(self.pixels)
                    .memory(gradient, n / self.pixels)
                    .compute(n, blocks_of(n))
            })?;
            return Ok(Some(tensor(dx, x.shape())));
        }
        let share = gradient.affine(1.0 / self.pixels as f64, 0.0)?;
        Ok(Some(share.unsqueeze(2)?.unsqueeze(3)?.broadcast_as(x.shape())?))
    }
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
