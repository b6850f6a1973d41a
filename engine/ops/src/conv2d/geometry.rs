//! The sizes of one convolution, checked once.

use candle_core::{DType, Result, Tensor, bail};

use crate::kernels::memory::{excess, product};
use crate::kernels::simd::Simd;

/// The sizes of a convolution. The input has `in_channels` planes of `height` × `width` pixels, and the output has
/// `out_channels` planes of `out_h` × `out_w`. The kernel covers `kernel_h` × `kernel_w` pixels of each input plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) in_channels: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) out_channels: usize,
    pub(crate) kernel_h: usize,
    pub(crate) kernel_w: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) out_h: usize,
    pub(crate) out_w: usize,
}

impl Geometry {
    /// Reads the sizes from the tensors' shapes, and checks that the sizes fit each other.
    pub(super) fn new(
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let (batch, in_channels, height, width) = x.dims4()?;
        let (out_channels, weight_channels, kernel_h, kernel_w) = weight.dims4()?;
        if weight_channels != in_channels {
            bail!("conv2d: {in_channels} input channels, but a kernel for {weight_channels}");
        }
        if let Some(bias) = bias
            && bias.dims() != [out_channels]
        {
            bail!("conv2d: a bias of {:?} for {out_channels} output channels", bias.dims());
        }
        let (images, kernel) = (x.dims(), weight.dims());
        if [&images[1..], kernel, &[stride]].concat().contains(&0) {
            bail!(
                "conv2d: all sizes but the batch must be at least 1, got images {images:?}, a kernel {kernel:?} and \
                 stride {stride}"
            );
        }
        let padded = |size: usize| size.saturating_add(padding.saturating_mul(2));
        let (padded_h, padded_w) = (padded(height), padded(width));
        if kernel_h > padded_h || kernel_w > padded_w {
            bail!(
                "conv2d: a {kernel_h}×{kernel_w} kernel does not fit a {height}×{width} input with padding \
                 {padding}"
            );
        }
        let geometry = Self {
            batch,
            in_channels,
            height,
            width,
            out_channels,
            kernel_h,
            kernel_w,
            // A longer stride leaves the same single output.
            stride: stride.min(padded_h.max(padded_w)),
            padding,
            out_h: (padded_h - kernel_h) / stride + 1,
            out_w: (padded_w - kernel_w) / stride + 1,
        };
        // A block whose size in bytes does not fit a `usize` does not fit into memory.
        let block = [in_channels.max(out_channels), padded_h, padded_w, size_of::<Simd<f64>>()];
        if product(&block) == usize::MAX {
            geometry.check_memory(usize::MAX, DType::F64)?;
        }
        Ok(geometry)
    }

    /// Fails when the convolution needs memory for this many numbers and the machine has less.
    pub(super) fn check_memory(&self, numbers: usize, dtype: DType) -> Result<()> {
        let Some(excess) = excess(numbers, dtype) else { return Ok(()) };
        let Self { height, width, kernel_h, kernel_w, padding, .. } = self;
        let sees_images = kernel_h.max(kernel_w) - 1;
        if *padding > sees_images {
            bail!(
                "conv2d: padding {padding} is too much for a {height}×{width} input and {excess}. Beyond \
                 padding {sees_images}, a {kernel_h}×{kernel_w} kernel sees zeros alone"
            );
        }
        bail!(
            "conv2d: a {kernel_h}×{kernel_w} kernel on a {height}×{width} input with padding {padding} {excess}"
        )
    }

    /// Elements of one input image.
    pub(crate) fn image(&self) -> usize {
        self.in_channels * self.height * self.width
    }

    /// Input elements that one output pixel depends on: rows of the im2col matrix.
    pub(crate) fn patch(&self) -> usize {
        self.in_channels * self.kernel_h * self.kernel_w
    }

    /// Pixels of one output plane: columns of the im2col matrix of one image.
    pub(crate) fn pixels(&self) -> usize {
        self.out_h * self.out_w
    }

    /// Elements of one output image.
    pub(crate) fn out_image(&self) -> usize {
        self.out_channels * self.pixels()
    }
}

/// One of a convolution's three products, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    /// The output, `[B, O, H', W']`, from the input, `[B, C, H, W]`, and the kernel, `[O, C, KH, KW]`.
    Output,
    /// The output before a relu: a patch of zeros gives exactly zero, where the slope of the relu changes.
    OutputForRelu,
    /// The gradient of the input, from the kernel and the output's gradient.
    InputGradient,
    /// The gradient of the kernel, from the input and the output's gradient; zeros without images.
    WeightGradient,
}
