//! The windows of a pooling.

use candle_core::{Result, WithDType, bail};

use super::element::Element;

/// The windows of one image plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) out_height: usize,
    pub(crate) out_width: usize,
}

impl Windows {
    pub(crate) fn new(height: usize, width: usize, kernel: usize, stride: usize) -> Result<Self> {
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

    pub(crate) fn in_plane(&self) -> usize {
        self.height * self.width
    }

    pub(crate) fn out_plane(&self) -> usize {
        self.out_height * self.out_width
    }

    /// The weight of each element in its window's mean: 1 / area.
    pub(crate) fn share<T: Element>(&self) -> T {
        <T as WithDType>::from_f64(1.0 / (self.kernel * self.kernel) as f64)
    }

    /// Calls `visit(output index, first input index of the window)` for every window, row by row.
    /// The plane's rows lie `pitch` elements apart.
    #[inline(always)]
    pub(crate) fn for_each(&self, pitch: usize, mut visit: impl FnMut(usize, usize)) {
        for row in 0..self.out_height {
            for col in 0..self.out_width {
                let first = row * self.stride * pitch + col * self.stride;
                visit(row * self.out_width + col, first);
            }
        }
    }
}
