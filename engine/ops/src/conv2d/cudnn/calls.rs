//! cuDNN's functions for each of the three products: descriptors, the list of algorithms, their workspace, and the call.

#![expect(unsafe_code, reason = "cuDNN is a library in C")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::cudnn::result::{
    self, CudnnResult, convolution_backward_data as data_gradient,
    convolution_backward_filter as filter_gradient, convolution_forward as forward,
    get_convolution_backward_data_algorithm as list_for_data,
    get_convolution_backward_data_workspace_size as space_for_data,
    get_convolution_backward_filter_algorithm as list_for_filter,
    get_convolution_backward_filter_workspace_size as space_for_filter,
    get_convolution_forward_algorithm as list_forward,
    get_convolution_forward_workspace_size as space_forward,
    set_convolution2d_descriptor as set_convolution2d,
};
use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnConvolutionBwdDataAlgo_t as BackwardData, cudnnConvolutionBwdDataAlgoPerf_t,
    cudnnConvolutionBwdFilterAlgo_t as BackwardFilter, cudnnConvolutionBwdFilterAlgoPerf_t,
    cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t as Forward,
    cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionMode_t as Mode, cudnnDataType_t as DataType,
    cudnnDeterminism_t, cudnnFilterDescriptor_t, cudnnHandle_t, cudnnMathType_t as Math,
    cudnnStatus_t, cudnnTensorDescriptor_t, cudnnTensorFormat_t as Format,
};
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::{DType, Result, bail};

use super::refused;
use crate::conv2d::geometry::{Geometry, Pass};

/// A cuDNN object, which is destroyed with its owner.
struct Owned<T: Copy> {
    raw: T,
    destroy: unsafe fn(T) -> CudnnResult<()>,
}

/// Makes the owner of a new object. `destroy` is the function for objects of its type.
fn owned<T: Copy>(
    object: CudnnResult<T>,
    destroy: unsafe fn(T) -> CudnnResult<()>,
) -> CudnnResult<Owned<T>> {
    object.map(|raw| Owned { raw, destroy })
}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // A failure leaks the object, and the caller could do nothing about it.
        // SAFETY: the object was new when `owned` took it. Nothing else destroys it or uses it later.
        let _ = unsafe { (self.destroy)(self.raw) };
    }
}

/// A handle to cuDNN, which belongs to the context that was current when it was made, and queues work on its stream.
pub(super) struct Handle {
    handle: Owned<cudnnHandle_t>,
    pub(super) stream: Arc<CudaStream>,
}

impl Handle {
    /// Makes a handle of a stream, whose context is current.
    pub(super) fn new(stream: Arc<CudaStream>) -> CudnnResult<Self> {
        let handle = owned(result::create_handle(), result::destroy_handle)?;
        // SAFETY: handle and stream have their owners, and the result keeps both owners.
        unsafe { result::set_stream(handle.raw, stream.cu_stream().cast()) }?;
        Ok(Self { handle, stream })
    }
}

/// One of cuDNN's algorithms, for one of the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Algorithm {
    Output(Forward),
    InputGradient(BackwardData),
    WeightGradient(BackwardFilter),
}

/// The properties that cuDNN reports of an algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) algorithm: Algorithm,
    /// Whether the algorithm can compute the product.
    pub(super) works: bool,
    pub(super) deterministic: bool,
    /// The math that the algorithm would use: tensor cores or not.
    pub(super) math: Math,
}

/// Converts an entry of a list. The entries of the three lists differ only in the algorithm's type.
macro_rules! entry {
    ($entry:ty, $algorithm:path) => {
        impl From<$entry> for Candidate {
            fn from(entry: $entry) -> Self {
                Self {
                    algorithm: $algorithm(entry.algo),
                    works: entry.status == cudnnStatus_t::CUDNN_STATUS_SUCCESS,
                    deterministic: entry.determinism == cudnnDeterminism_t::CUDNN_DETERMINISTIC,
                    math: entry.mathType,
                }
            }
        }
    };
}

entry!(cudnnConvolutionFwdAlgoPerf_t, Algorithm::Output);
entry!(cudnnConvolutionBwdDataAlgoPerf_t, Algorithm::InputGradient);
entry!(cudnnConvolutionBwdFilterAlgoPerf_t, Algorithm::WeightGradient);

/// Descriptors of a convolution's tensors, and of their gradients, which have the same shapes.
pub(super) struct Descriptors {
    x: Owned<cudnnTensorDescriptor_t>,
    weight: Owned<cudnnFilterDescriptor_t>,
    y: Owned<cudnnTensorDescriptor_t>,
    convolution: Owned<cudnnConvolutionDescriptor_t>,
    /// 1 and 0 in the type of cuDNN's scaling parameters.
    scales: [*const c_void; 2],
}

impl Descriptors {
    /// Makes the descriptors of contiguous tensors.
    pub(super) fn new(g: &Geometry, dtype: DType) -> Result<Self> {
        use DataType::{CUDNN_DATA_DOUBLE as F64, CUDNN_DATA_FLOAT as F32};
        /// cuDNN's scaling parameters are f64 for f64, otherwise f32.
        static SCALES: ([f64; 2], [f32; 2]) = ([1.0, 0.0], [1.0, 0.0]);
        let wide = SCALES.0.each_ref().map(|scale| ptr::from_ref(scale).cast());
        let narrow = SCALES.1.each_ref().map(|scale| ptr::from_ref(scale).cast());
        // The type of the elements, and the type in which products are added up.
        let (dtype, sums, scales) = match dtype {
            DType::F64 => (F64, F64, wide),
            DType::F32 => (F32, F32, narrow),
            DType::BF16 => (DataType::CUDNN_DATA_BFLOAT16, F32, narrow),
            other => bail!("conv2d: works on f32, f64 and bf16, not on {other:?}"),
        };
        let x = counts([g.batch, g.in_channels, g.height, g.width])?;
        let weight = counts([g.out_channels, g.in_channels, g.kernel_h, g.kernel_w])?;
        let y = counts([g.batch, g.out_channels, g.out_h, g.out_w])?;
        let [stride, pad] = counts([g.stride, g.padding])?;
        let made = || {
            let tensor =
                || owned(result::create_tensor_descriptor(), result::destroy_tensor_descriptor);
            let filter = result::create_filter_descriptor();
            let conv = result::create_convolution_descriptor();
            let made = Self {
                x: tensor()?,
                weight: owned(filter, result::destroy_filter_descriptor)?,
                y: tensor()?,
                convolution: owned(conv, result::destroy_convolution_descriptor)?,
                scales,
            };
            let (format, mode) = (Format::CUDNN_TENSOR_NCHW, Mode::CUDNN_CROSS_CORRELATION);
            // SAFETY: the four descriptors have just been made, and their owners live.
            unsafe {
                let conv = made.convolution.raw;
                result::set_tensor4d_descriptor(made.x.raw, format, dtype, x)?;
                result::set_filter4d_descriptor(made.weight.raw, dtype, format, weight)?;
                result::set_tensor4d_descriptor(made.y.raw, format, dtype, y)?;
                set_convolution2d(conv, pad, pad, stride, stride, 1, 1, mode, sums)?;
            }
            Ok(made)
        };
        made().map_err(|error| refused(format_args!("sizes {x:?}, {weight:?}, {y:?}"), error))
    }

    /// Sets the math that the convolution may use.
    pub(super) fn set_math(&self, math: Math) -> CudnnResult<()> {
        // SAFETY: the owner lives.
        unsafe { result::set_convolution_math_type(self.convolution.raw, math) }
    }

    /// Returns the algorithms for a product as cuDNN's heuristics rank them, the best first.
    pub(super) fn candidates(&self, handle: &Handle, pass: Pass) -> CudnnResult<Vec<Candidate>> {
        let (handle, conv) = (handle.handle.raw, self.convolution.raw);
        let (x, weight, y) = (self.x.raw, self.weight.raw, self.y.raw);
        // SAFETY: the owners live. cuDNN writes the number of entries, and no more than the list has, from the first on.
        unsafe {
            match pass {
                Pass::Output | Pass::OutputForRelu => listed(|size, count, list| {
                    list_forward(handle, x, weight, conv, y, size, count, list)
                }),
                Pass::InputGradient => listed(|size, count, list| {
                    list_for_data(handle, weight, y, conv, x, size, count, list)
                }),
                Pass::WeightGradient => listed(|size, count, list| {
                    list_for_filter(handle, x, y, conv, weight, size, count, list)
                }),
            }
        }
    }

    /// Returns the bytes of workspace that an algorithm needs, with the math that was set.
    pub(super) fn workspace(&self, handle: &Handle, algorithm: Algorithm) -> CudnnResult<usize> {
        let (handle, conv) = (handle.handle.raw, self.convolution.raw);
        let (x, weight, y) = (self.x.raw, self.weight.raw, self.y.raw);
        // SAFETY: the owners of the handle and of the descriptors live.
        unsafe {
            match algorithm {
                Algorithm::Output(by) => space_forward(handle, x, weight, conv, y, by),
                Algorithm::InputGradient(by) => space_for_data(handle, weight, y, conv, x, by),
                Algorithm::WeightGradient(by) => space_for_filter(handle, x, y, conv, weight, by),
            }
        }
    }

    /// Queues the computation on the handle's stream. The operands are in the order in which [`Pass`] names them.
    ///
    /// # Safety
    ///
    /// The pointers must point into memory of the handle's device, with the sizes that these descriptors and
    /// [`workspace`](Self::workspace) report. Until the stream has finished, the memory must stay allocated, and nothing else
    /// may write to it, or read the result or the workspace.
    pub(super) unsafe fn queue(
        &self,
        handle: &Handle,
        algorithm: Algorithm,
        [a, b]: [*const c_void; 2],
        to: *mut c_void,
        (space, size): (*mut c_void, usize),
    ) -> CudnnResult<()> {
        let (h, conv) = (handle.handle.raw, self.convolution.raw);
        let (x, weight, y) = (self.x.raw, self.weight.raw, self.y.raw);
        let [one, zero] = self.scales;
        // SAFETY: the owners live, the scales are static, and the caller guarantees the pointers.
        unsafe {
            match algorithm {
                Algorithm::Output(by) => {
                    forward(h, one, x, a, weight, b, conv, by, space, size, zero, y, to)
                }
                Algorithm::InputGradient(by) => {
                    data_gradient(h, one, weight, a, y, b, conv, by, space, size, zero, x, to)
                }
                Algorithm::WeightGradient(by) => {
                    filter_gradient(h, one, x, a, y, b, conv, by, space, size, zero, weight, to)
                }
            }
        }
    }
}

/// The capacity of a list for every algorithm, at most eight, with and without tensor cores.
const ENTRIES: c_int = 16;

/// Returns the list that a cuDNN function fills.
///
/// # Safety
///
/// `ask` receives the size of a list, the address of the number of entries, and the list. `ask`
/// must write the number of entries and no more entries than the size, from the first on.
unsafe fn listed<E: Into<Candidate>>(
    ask: impl FnOnce(c_int, *mut c_int, *mut E) -> CudnnResult<()>,
) -> CudnnResult<Vec<Candidate>> {
    let mut entries = Vec::with_capacity(ENTRIES as usize);
    let mut count = 0;
    ask(ENTRIES, &mut count, entries.as_mut_ptr())?;
    // SAFETY: the caller guarantees that so many entries have been written, and the capacity is no less than ENTRIES.
    unsafe { entries.set_len(count.clamp(0, ENTRIES) as usize) };
    Ok(entries.into_iter().map(Into::into).collect())
}

/// Converts sizes to cuDNN's integer type.
pub(super) fn counts<const N: usize>(sizes: [usize; N]) -> Result<[c_int; N]> {
    if let Some(size) = sizes.iter().find(|&&size| c_int::try_from(size).is_err()) {
        bail!("cuDNN: a size of {size}, and it counts to {} only", c_int::MAX);
    }
    Ok(sizes.map(|size| size as c_int))
}
