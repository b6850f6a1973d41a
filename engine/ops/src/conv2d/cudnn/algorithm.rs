//! cuDNN's algorithms for a product: the list of algorithms, their workspace, and the call that
//! runs one.
//!
//! cuDNN has separate functions for each of the three products. They differ in names and in the
//! order of arguments.

#![expect(unsafe_code, reason = "cuDNN is a library in C")]

use std::ffi::{c_int, c_void};

use candle_core::cuda_backend::cudarc::cudnn::result::{self, CudnnResult};
use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnConvolutionBwdDataAlgo_t as BackwardData, cudnnConvolutionBwdDataAlgoPerf_t,
    cudnnConvolutionBwdFilterAlgo_t as BackwardFilter, cudnnConvolutionBwdFilterAlgoPerf_t,
    cudnnConvolutionFwdAlgo_t as Forward, cudnnConvolutionFwdAlgoPerf_t, cudnnDeterminism_t,
    cudnnMathType_t as Math, cudnnStatus_t,
};

use super::Pass;
use super::descriptors::{Descriptors, Handle};

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

/// Returns the algorithms that cuDNN documents for every shape. Each is deterministic.
pub(super) fn usual(pass: Pass) -> Vec<Algorithm> {
    match pass {
        Pass::Output | Pass::OutputForRelu => [
            Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
            Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
        ]
        .map(Algorithm::Output)
        .into(),
        Pass::InputGradient => {
            vec![Algorithm::InputGradient(BackwardData::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1)]
        }
        Pass::WeightGradient => {
            vec![Algorithm::WeightGradient(BackwardFilter::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1)]
        }
    }
}

/// The capacity of a list for every algorithm with and without tensor cores. There are eight
/// algorithms for the output, fewer for the gradients.
const ENTRIES: c_int = 16;

/// Addresses of one run's memory on the GPU.
pub(super) struct Pointers {
    /// The operands, in the order in which [`Pass`] names them.
    pub(super) operands: [*const c_void; 2],
    pub(super) result: *mut c_void,
    pub(super) workspace: *mut c_void,
    /// The size of the workspace in bytes.
    pub(super) workspace_size: usize,
}

/// Returns the algorithms for a product as cuDNN's heuristics rank them, the best first.
///
/// The function runs none of them.
pub(super) fn candidates(
    handle: &Handle,
    pass: Pass,
    descriptors: &Descriptors,
) -> CudnnResult<Vec<Candidate>> {
    let handle = handle.raw();
    let (x, weight, y) = (descriptors.x.raw(), descriptors.weight.raw(), descriptors.y.raw());
    let convolution = descriptors.convolution.raw();
    // SAFETY: the owners of the handle and of the descriptors live. cuDNN writes no more entries
    // than the list has, from the first on, and it writes the number of entries.
    unsafe {
        match pass {
            Pass::Output | Pass::OutputForRelu => listed(|size, count, entries| {
                result::get_convolution_forward_algorithm(
                    handle,
                    x,
                    weight,
                    convolution,
                    y,
                    size,
                    count,
                    entries,
                )
            }),
            Pass::InputGradient => listed(|size, count, entries| {
                result::get_convolution_backward_data_algorithm(
                    handle,
                    weight,
                    y,
                    convolution,
                    x,
                    size,
                    count,
                    entries,
                )
            }),
            Pass::WeightGradient => listed(|size, count, entries| {
                result::get_convolution_backward_filter_algorithm(
                    handle,
                    x,
                    y,
                    convolution,
                    weight,
                    size,
                    count,
                    entries,
                )
            }),
        }
    }
}

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
    // SAFETY: the caller guarantees that this number of entries has been written, and the capacity
    // is no less than ENTRIES.
    unsafe { entries.set_len(count.clamp(0, ENTRIES) as usize) };
    Ok(entries.into_iter().map(Into::into).collect())
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

impl Algorithm {
    /// Returns the bytes of workspace that the algorithm needs, with the math that `descriptors`
    /// are set to.
    pub(super) fn workspace(
        self,
        handle: &Handle,
        descriptors: &Descriptors,
    ) -> CudnnResult<usize> {
        let handle = handle.raw();
        let (x, weight, y) = (descriptors.x.raw(), descriptors.weight.raw(), descriptors.y.raw());
        let convolution = descriptors.convolution.raw();
        // SAFETY: the owners of the handle and of the descriptors live.
        unsafe {
            match self {
                Self::Output(algorithm) => result::get_convolution_forward_workspace_size(
                    handle,
                    x,
                    weight,
                    convolution,
                    y,
                    algorithm,
                ),
                Self::InputGradient(algorithm) => {
                    result::get_convolution_backward_data_workspace_size(
                        handle,
                        weight,
                        y,
                        convolution,
                        x,
                        algorithm,
                    )
                }
                Self::WeightGradient(algorithm) => {
                    result::get_convolution_backward_filter_workspace_size(
                        handle,
                        x,
                        y,
                        convolution,
                        weight,
                        algorithm,
                    )
                }
            }
        }
    }

    /// Queues the computation on the handle's stream and overwrites the result.
    ///
    /// `one` and `zero` have the type of cuDNN's scaling parameters: f64 for f64, otherwise f32.
    ///
    /// # Safety
    ///
    /// The pointers must point into memory of the handle's device, with the sizes that
    /// `descriptors` and [`workspace`](Self::workspace) report. The memory must stay allocated
    /// until the stream has finished this computation. Until then nothing else may write to the
    /// memory, or read the result or the workspace.
    pub(super) unsafe fn queue<S>(
        self,
        handle: &Handle,
        descriptors: &Descriptors,
        pointers: &Pointers,
        [one, zero]: &[S; 2],
    ) -> CudnnResult<()> {
        let handle = handle.raw();
        let (x, weight, y) = (descriptors.x.raw(), descriptors.weight.raw(), descriptors.y.raw());
        let convolution = descriptors.convolution.raw();
        let Pointers { operands: [first, second], result, workspace, workspace_size } = *pointers;
        let (one, zero) = ((&raw const *one).cast(), (&raw const *zero).cast());
        // SAFETY: the owners of the handle and of the descriptors live, and the caller guarantees
        // the pointers. cuDNN reads `one` and `zero` before it returns.
        unsafe {
            match self {
                Self::Output(algorithm) => result::convolution_forward(
                    handle,
                    one,
                    x,
                    first,
                    weight,
                    second,
                    convolution,
                    algorithm,
                    workspace,
                    workspace_size,
                    zero,
                    y,
                    result,
                ),
                Self::InputGradient(algorithm) => result::convolution_backward_data(
                    handle,
                    one,
                    weight,
                    first,
                    y,
                    second,
                    convolution,
                    algorithm,
                    workspace,
                    workspace_size,
                    zero,
                    x,
                    result,
                ),
                Self::WeightGradient(algorithm) => result::convolution_backward_filter(
                    handle,
                    one,
                    x,
                    first,
                    y,
                    second,
                    convolution,
                    algorithm,
                    workspace,
                    workspace_size,
                    zero,
                    weight,
                    result,
                ),
            }
        }
    }
}
