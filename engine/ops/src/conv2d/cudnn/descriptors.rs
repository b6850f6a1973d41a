//! cuDNN's descriptors of sizes and types. cuDNN allocates them, and their owners here destroy
//! them.

#![expect(unsafe_code, reason = "cuDNN's objects are raw pointers")]

use std::ffi::c_int;

use candle_core::cuda_backend::cudarc::cudnn::result::{self, CudnnResult};
use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnConvolutionDescriptor_t, cudnnConvolutionMode_t as Mode, cudnnFilterDescriptor_t,
    cudnnHandle_t, cudnnMathType_t as Math, cudnnTensorDescriptor_t, cudnnTensorFormat_t as Format,
};

use candle_core::{Result, bail};

use super::{Number, refused};
use crate::conv2d::geometry::Geometry;

/// Declares the owner of a cuDNN object.
macro_rules! owner {
    ($(#[$doc:meta])* $name:ident, $raw:ty, $create:path, $destroy:path) => {
        $(#[$doc])*
        pub(super) struct $name($raw);

        impl $name {
            /// Makes an object.
            pub(super) fn new() -> CudnnResult<Self> {
                $create().map(Self)
            }

            /// cuDNN's pointer to the object, which lives as long as the owner.
            pub(super) fn raw(&self) -> $raw {
                self.0
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // A failure leaks the object, and the caller could do nothing about it.
                // SAFETY: the object was made by `new`, nothing else destroys it, and nothing uses
                // it after its owner.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    };
}

owner!(
    /// A handle to cuDNN, which belongs to the context that was current when the handle was made.
    Handle,
    cudnnHandle_t,
    result::create_handle,
    result::destroy_handle
);
owner!(
    /// The shape of a tensor.
    Tensor,
    cudnnTensorDescriptor_t,
    result::create_tensor_descriptor,
    result::destroy_tensor_descriptor
);
owner!(
    /// The shape of a kernel.
    Filter,
    cudnnFilterDescriptor_t,
    result::create_filter_descriptor,
    result::destroy_filter_descriptor
);
owner!(
    /// The stride and padding of a convolution, and the math that it may use.
    Convolution,
    cudnnConvolutionDescriptor_t,
    result::create_convolution_descriptor,
    result::destroy_convolution_descriptor
);

/// Descriptors of a convolution's tensors, and of their gradients, which have the same shapes.
pub(super) struct Descriptors {
    pub(super) x: Tensor,
    pub(super) weight: Filter,
    pub(super) y: Tensor,
    pub(super) convolution: Convolution,
}

impl Descriptors {
    /// Makes the descriptors of contiguous tensors of `T`.
    pub(super) fn new<T: Number>(g: &Geometry) -> Result<Self> {
        let x = counts([g.batch, g.in_channels, g.height, g.width])?;
        let weight = counts([g.out_channels, g.in_channels, g.kernel_h, g.kernel_w])?;
        let y = counts([g.batch, g.out_channels, g.out_h, g.out_w])?;
        let [stride, padding] = counts([g.stride, g.padding])?;
        let made = || {
            let descriptors = Self {
                x: Tensor::new()?,
                weight: Filter::new()?,
                y: Tensor::new()?,
                convolution: Convolution::new()?,
            };
            let Self { x: x_is, weight: weight_is, y: y_is, convolution } = &descriptors;
            let (format, dtype) = (Format::CUDNN_TENSOR_NCHW, T::DATA_TYPE);
            // SAFETY: the four descriptors have just been made, and their owners live.
            unsafe {
                result::set_tensor4d_descriptor(x_is.raw(), format, dtype, x)?;
                result::set_filter4d_descriptor(weight_is.raw(), dtype, format, weight)?;
                result::set_tensor4d_descriptor(y_is.raw(), format, dtype, y)?;
                result::set_convolution2d_descriptor(
                    convolution.raw(),
                    padding,
                    padding,
                    stride,
                    stride,
                    1,
                    1,
                    Mode::CUDNN_CROSS_CORRELATION,
                    T::SUMS,
                )?;
            }
            Ok(descriptors)
        };
        made().map_err(|error| refused(format_args!("sizes {x:?}, {weight:?}, {y:?}"), error))
    }
}

impl Convolution {
    /// Sets the math that the convolution may use.
    pub(super) fn set_math(&self, math: Math) -> CudnnResult<()> {
        // SAFETY: the owner lives.
        unsafe { result::set_convolution_math_type(self.raw(), math) }
    }
}

/// Converts sizes to cuDNN's integer type.
pub(super) fn counts<const N: usize>(sizes: [usize; N]) -> Result<[c_int; N]> {
    let mut counts = [0; N];
    for (count, size) in counts.iter_mut().zip(sizes) {
        match c_int::try_from(size) {
            Ok(size) => *count = size,
            Err(_) => bail!("cuDNN: a size of {size}, and it counts to {} only", c_int::MAX),
        }
    }
    Ok(counts)
}
