//! Average pooling, over windows and over whole planes.
//!
//! Windows start every `stride` rows and columns, and only whole windows count. Pooling a 5×5 image by 2×2 gives 2×2:
//!
//! ```text
//! a a b b ·
//! a a b b ·         ā b̄         gradient of each a: the gradient of ā, divided by 4
//! c c d d ·   →     c̄ d̄         gradient of each ·: exactly 0
//! c c d d ·
//! · · · · ·
//! ```
//!
//! A pixel outside every window does not change the output, so its gradient is zero. candle's backward gives it some.
//!
//! Cost: one addition for each element of a window. A task reads one plane once, and writes a smaller one.

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use crate::backward::record;
use crate::copies::{is_rounded, rounded};
use crate::kernels::element::{
    Element, by_device, check_dtype, computed_in, copied, cpu_memory, tensor,
};
use crate::kernels::gpu;
use crate::kernels::memory::zeros;
use crate::kernels::windows::Windows;

/// Computes the mean over `kernel`×`kernel` windows that start every `stride` rows and columns.
///
/// `[B, C, H, W]` → `[B, C, H', W']` with `H' = (H − kernel) / stride + 1`, rounded down. Fails
/// when `kernel` or `stride` is 0, when a window is larger than the image, and on other dtypes.
pub fn avg_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let windows = Windows::new(height, width, kernel, stride)?;
    if is_rounded(x) {
        return rounded("avg_pool2d", &[x], |x| avg_pool2d(&x[0], kernel, stride));
    }
    let (x, x_shape) = (&x.contiguous()?, x.shape().clone());
    let shape = (batch, channels, windows.out_height, windows.out_width);
    let means =
        by_device!("avg_pool2d", |x| gpu::avg_pool2d(&windows, x)?, cpu_memory(windows.means(x)));
    record("avg_pool2d", means, shape, [x], move |_, dy| {
        let x = &x_shape;
        let dx = by_device!(
            "avg_pool2d",
            |dy| gpu::avg_pool2d_gradient(&windows, dy, x)?,
            tensor(cpu_memory(windows.gradient(dy)), x)
        );
        Ok([Some(dx)])
    })
}

impl Windows {
    fn means<T: Element>(&self, x: &[T]) -> Vec<T> {
        let share = self.share::<T>();
        let planes = x.len() / self.in_plane();
        let mut y = zeros(planes * self.out_plane());
        y.par_chunks_mut(self.out_plane()).zip(x.par_chunks(self.in_plane())).for_each(|(y, x)| {
            self.for_each(self.width, |out, first| {
                let mut sum = T::zero();
                for row in x[first..].chunks(self.width).take(self.kernel) {
                    for &value in &row[..self.kernel] {
                        sum += value;
                    }
                }
                y[out] = sum * share;
            });
        });
        y
    }

    // ANCHOR: backward
    fn gradient<T: Element>(&self, grad: &[T]) -> Vec<T> {
        let share = self.share::<T>();
        let planes = grad.len() / self.out_plane();
        let mut dx = zeros(planes * self.in_plane());
        let chunks = dx.par_chunks_mut(self.in_plane()).zip(grad.par_chunks(self.out_plane()));
        chunks.for_each(|(dx, grad)| {
            self.for_each(self.width, |out, first| {
                // The gradients are added: with stride < kernel an element lies in several windows.
                let grad = grad[out] * share;
                for row in dx[first..].chunks_mut(self.width).take(self.kernel) {
                    for value in &mut row[..self.kernel] {
                        *value += grad;
                    }
                }
            });
        });
        dx
    }
    // ANCHOR_END: backward
}

/// Computes the mean over all pixels: `[B, C, H, W]` → `[B, C]`. Fails when planes are empty, and on other dtypes.
pub fn global_avg_pool(x: &Tensor) -> Result<Tensor> {
    check_dtype(computed_in(x.dtype()), "global_avg_pool")?;
    let (batch, channels, height, width) = x.dims4()?;
    let pixels = height * width;
    if pixels == 0 {
        bail!("global_avg_pool: planes must have at least one pixel, got {height}×{width}");
    }
    let (x, x_shape) = (x.contiguous()?, x.shape().clone());
    let means = if x.device().is_cuda() {
        gpu::global_avg_pool(&x, pixels)?
    } else {
        // The sum of bf16 is in f32, and the mean is rounded once.
        let sums = x.detach().to_dtype(computed_in(x.dtype()))?.flatten_from(2)?.sum(2)?;
        let means = sums.affine(1.0 / pixels as f64, 0.0)?;
        copied(&means, means.layout(), x.dtype())?
    };
    record("global_avg_pool", means, (batch, channels), [&x], move |_, dy| {
        if dy.device().is_cuda() {
            let dx = gpu::global_avg_pool_gradient(dy, &x_shape, pixels)?;
            return Ok([Some(dx)]);
        }
        let share = dy.affine(1.0 / pixels as f64, 0.0)?;
        Ok([Some(share.unsqueeze(2)?.unsqueeze(3)?.broadcast_as(&x_shape)?)])
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::tests::agreement::{FEW, assert_agree, assert_empty_batch_is_nothing, noises};

    /// The mean of the elements at each place of a window. candle's own pooling has other gradients.
    fn composed(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
        let places = |axis, from| {
            let windows = (x.dim(axis)? - kernel) / stride + 1;
            Tensor::from_iter((0..windows).map(|nth| (nth * stride + from) as u32), x.device())
        };
        let mut sum: Option<Tensor> = None;
        for place in 0..kernel * kernel {
            let rows = x.index_select(&places(2, place / kernel)?, 2)?;
            let part = rows.index_select(&places(3, place % kernel)?, 3)?;
            sum = Some(match sum {
                Some(sum) => (sum + part)?,
                None => part,
            });
        }
        sum.unwrap() / (kernel * kernel) as f64
    }

    /// Height, width, kernel, stride. Some windows leave rows and columns over, some overlap, some have gaps between them,
    /// and a GPU divides some images into parts.
    const WINDOWS: [[usize; 4]; 8] = [
        [9, 9, 2, 2],
        [9, 9, 3, 2],
        [9, 9, 2, 3],
        [7, 5, 3, 3],
        [4, 6, 2, 2],
        [8, 7, 3, 2],
        [9, 8, 2, 3],
        [83, 79, 2, 2],
    ];

    #[test]
    fn it_is_its_formula_in_every_type() {
        for [height, width, kernel, stride] in WINDOWS {
            let x = noises([&[2, 15, height, width]]);
            assert_agree(&FEW, &x, &|x| avg_pool2d(x[0], kernel, stride), &|x| {
                composed(x[0], kernel, stride)
            });
        }
    }

    #[test]
    fn whole_planes_have_their_mean_in_every_type() {
        for shape in [[3, 100, 4, 3], [3, 5, 4, 4]] {
            assert_agree(&FEW, &noises([&shape]), &|x| global_avg_pool(x[0]), &|x| {
                x[0].mean((2, 3))
            });
        }
    }

    #[test]
    fn what_no_window_covers_gets_exactly_no_gradient() {
        // LeNet's second pool turns 9×9 into 4×4 and drops the last row and column.
        let x = Var::from_tensor(&Tensor::ones((1, 1, 9, 9), DType::F64, &Device::Cpu).unwrap())
            .unwrap();
        let y = avg_pool2d(&x, 2, 2).unwrap();
        assert_eq!(y.dims(), [1, 1, 4, 4]);
        let grads = y.sum_all().unwrap().backward().unwrap();
        let dx = grads.get(&x).unwrap().reshape((9, 9)).unwrap().to_vec2::<f64>().unwrap();
        for (row, values) in dx.iter().enumerate() {
            for (col, &value) in values.iter().enumerate() {
                let expected = if row == 8 || col == 8 { 0.0 } else { 0.25 };
                assert_eq!(value, expected, "gradient at row {row}, column {col}");
            }
        }
    }

    #[test]
    fn an_empty_batch_has_gradients_of_zero() {
        assert_empty_batch_is_nothing(&[3, 9, 9], &[3, 4, 4], &[], |x| avg_pool2d(x, 2, 2));
    }

    #[test]
    fn windows_that_do_not_fit_are_refused() {
        let x = Tensor::ones((1, 1, 3, 5), DType::F32, &Device::Cpu).unwrap();
        for (kernel, stride, complaint) in [
            (0, 1, "kernel 0 and stride 1 must be at least 1"),
            (2, 0, "kernel 2 and stride 0 must be at least 1"),
            (4, 1, "a 4×4 window does not fit a 3×5 image"),
            (usize::MAX, 1, "window does not fit a 3×5 image"),
        ] {
            let error = avg_pool2d(&x, kernel, stride).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
        // A stride beyond the image leaves one window.
        assert_eq!(avg_pool2d(&x, 2, usize::MAX).unwrap().dims(), [1, 1, 1, 1]);
        let none = Tensor::zeros((0, 1, 1 << 40, 1 << 40), DType::F32, &Device::Cpu).unwrap();
        let error = avg_pool2d(&none, 2, 2).unwrap_err().to_string();
        assert!(error.contains("more pixels than a tensor can have"), "{error}");
    }

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
