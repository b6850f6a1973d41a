//! The sizes of images, and the windows of a pooling.

use std::ops::Range;

use candle_core::{Result, Shape, WithDType, bail};

use super::element::Element;

/// Images `[images, channels, plane]`. A dense layer's output has planes of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    pub(crate) plane: usize,
}

impl Channels {
    /// Returns the sizes of `[B, C, …]`.
    pub(crate) fn of(shape: &Shape) -> Result<Self> {
        let [images, channels, plane @ ..] = shape.dims() else {
            bail!("images [B, C, …] were expected, got {shape:?}");
        };
        Ok(Self { images: *images, channels: *channels, plane: plane.iter().product() })
    }

    pub(crate) fn elements(&self) -> usize {
        self.images * self.channels * self.plane
    }

    /// The number of values in one channel.
    pub(crate) fn count(&self) -> usize {
        self.images * self.plane
    }

    /// Returns the indices of the elements of an image's channel.
    #[inline(always)]
    pub(crate) fn plane(&self, image: usize, channel: usize) -> Range<usize> {
        let first = (image * self.channels + channel) * self.plane;
        first..first + self.plane
    }
}

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

    /// Calls `visit(output, first input)` with indices for every window. The plane's rows lie `pitch` elements apart.
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
