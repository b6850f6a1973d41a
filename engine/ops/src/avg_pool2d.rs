//! Average pooling, over windows and over whole planes.
//!
//! Windows start every `stride` rows and columns, and only whole windows count. Pooling a 5×5 image
//! by 2×2 gives 2×2, and no window contains the image's last row and column:
//!
//! ```text
//! a a b b ·
//! a a b b ·         ā b̄         gradient of each a: the gradient of ā, divided by 4
//! c c d d ·   →     c̄ d̄         gradient of each ·: exactly 0
//! c c d d ·
//! · · · · ·
//! ```
//!
//! A pixel outside every window does not change the output, so its gradient is zero. The backward
//! of candle's pooling spreads gradient over such pixels.
//!
//! Cost: one addition for each element of a window. Each plane is read once, and a smaller plane is
//! written. A task is a plane.

use candle_core::backend::BackendStorage as _;
use candle_core::op::ReduceOp;
use candle_core::{CpuStorage, DType, Layout, Result, Shape, Storage, Tensor, WithDType, bail};
use rayon::prelude::*;

use super::element::{Element, check_dtype, computed_in, cpu_memory, for_dtype, lock};
use super::memory::zeros;
use super::rounded::{is_rounded, rounded};
use crate::backward::record;
#[cfg(feature = "cuda")]
use crate::gpu::{Launch, Source, blocks_of, on_gpu, tensor};

/// Computes the mean over `kernel`×`kernel` windows that start every `stride` rows and columns.
///
/// `[B, C, H, W]` → `[B, C, H', W']` with `H' = (H − kernel) / stride + 1`, rounded down. Fails
/// when `kernel` or `stride` is 0, when a window is larger than the image, and on other dtypes.
pub fn avg_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let windows = Windows::new(height, width, kernel, stride)?;
    if is_rounded(x) {
        return rounded("avg_pool2d", [x], |[x]| avg_pool2d(&x, kernel, stride));
    }
    let x = x.contiguous()?;
    let shape = (batch, channels, windows.out_height, windows.out_width);
    let x_shape = x.shape().clone();
    record("avg_pool2d", forward(&windows, &x)?, shape, [&x], move |_, dy| {
        Ok([Some(gradient(&windows, dy, &x_shape)?)])
    })
}

fn forward(windows: &Windows, x: &Tensor) -> Result<Storage> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let of_x = x.elem_count();
        let n = of_x / windows.in_plane() * windows.out_plane();
        let y = on_gpu([x], |[x]| {
            Launch::new(x.gpu(), Source::Pooling, "avg_pool2d", x.dtype())
                .count(n)
                .windows(windows)
                .memory(x, of_x)
                .compute(n, blocks_of(n))
        });
        return y.map(Storage::Cuda);
    }
    for_dtype!(x.dtype(), "avg_pool2d", T => {
        let locked = lock(&[x]);
        let [x] = locked.elements::<T, 1>()?;
        Ok(cpu_memory(windows.means(x)))
    })
}

/// Computes the gradient of the input, of this shape, from the gradient of the means.
fn gradient(windows: &Windows, dy: &Tensor, x: &Shape) -> Result<Tensor> {
    let dy = dy.contiguous()?;
    #[cfg(feature = "cuda")]
    if dy.device().is_cuda() {
        let n = x.elem_count();
        let dx = on_gpu([&dy], |[dy]| {
            Launch::new(dy.gpu(), Source::Pooling, "avg_pool2d_gradient", dy.dtype())
                .count(n)
                .windows(windows)
                .memory(dy, n / windows.in_plane() * windows.out_plane())
                .compute(n, blocks_of(n))
        })?;
        return Ok(tensor(dx, x));
    }
    for_dtype!(dy.dtype(), "avg_pool2d", T => {
        let locked = lock(&[&dy]);
        let [grad] = locked.elements::<T, 1>()?;
        Tensor::from_vec(windows.gradient(grad), x, dy.device())
    })
}

/// The windows of one image plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) out_height: usize,
    pub(super) out_width: usize,
}

impl Windows {
    pub(super) fn new(height: usize, width: usize, kernel: usize, stride: usize) -> Result<Self> {
        if kernel == 0 || stride == 0 {
            bail!("avg_pool2d: kernel {kernel} and stride {stride} must be at least 1");
        }
        if kernel > height || kernel > width {
            bail!("avg_pool2d: a {kernel}×{kernel} window does not fit a {height}×{width} image");
        }
        // Only images of an empty batch can have such sizes.
        if height.checked_mul(width).is_none() {
            bail!("avg_pool2d: {height}×{width} images have more pixels than a tensor can have");
        }
        Ok(Self {
            height,
            width,
            kernel,
            stride,
            out_height: (height - kernel) / stride + 1,
            out_width: (width - kernel) / stride + 1,
        })
    }

    pub(super) fn in_plane(&self) -> usize {
        self.height * self.width
    }

    pub(super) fn out_plane(&self) -> usize {
        self.out_height * self.out_width
    }

    /// The weight of each element in its window's mean: 1 / area.
    pub(super) fn share<T: Element>(&self) -> T {
        <T as WithDType>::from_f64(1.0 / (self.kernel * self.kernel) as f64)
    }

    /// Calls `visit(output index, first input index of the window)` for every window, row by row.
    /// The plane's rows lie `pitch` elements apart.
    #[inline(always)]
    pub(super) fn for_each(&self, pitch: usize, mut visit: impl FnMut(usize, usize)) {
        for row in 0..self.out_height {
            for col in 0..self.out_width {
                let first = row * self.stride * pitch + col * self.stride;
                visit(row * self.out_width + col, first);
            }
        }
    }

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

#[cfg(feature = "cuda")]
impl Launch<'_> {
    /// Adds the sizes of the windows, and the weight of an element in its window's mean.
    pub(super) fn windows(self, windows: &Windows) -> Self {
        let Windows { height, width, kernel, stride, out_height, out_width } = *windows;
        let sizes = [height, width, kernel, stride, out_height, out_width];
        sizes.into_iter().fold(self, Self::count).number(windows.share::<f64>())
    }
}

/// Computes the mean over all pixels: `[B, C, H, W]` → `[B, C]`. Fails when planes are empty, or
/// `x` is none of f32, f64 and bf16.
pub fn global_avg_pool(x: &Tensor) -> Result<Tensor> {
    check_dtype(computed_in(x.dtype()), "global_avg_pool")?;
    let (batch, channels, height, width) = x.dims4()?;
    let pixels = height * width;
    if pixels == 0 {
        bail!("global_avg_pool: planes must have at least one pixel, got {height}×{width}");
    }
    let x = x.contiguous()?;
    let means = means_of_planes(&x, pixels)?;
    let x_shape = x.shape().clone();
    record("global_avg_pool", means, (batch, channels), [&x], move |_, dy| {
        Ok([Some(gradient_of_planes(dy, &x_shape, pixels)?)])
    })
}

/// Computes the means of planes of so many `pixels`, for contiguous `x`.
fn means_of_planes(x: &Tensor, pixels: usize) -> Result<Storage> {
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
fn gradient_of_planes(dy: &Tensor, x: &Shape, pixels: usize) -> Result<Tensor> {
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
    use candle_core::{Device, Var};

    use super::*;
    use crate::tests::agreement::assert_empty_batch_is_nothing;

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
