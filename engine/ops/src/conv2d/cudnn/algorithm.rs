//! What cuDNN is asked: its algorithms for a product, the memory that one needs, and to run one.
//!
//! The three products have functions of their own for each, which differ in names and in the order of arguments.

#![expect(unsafe_code, reason = "cuDNN is a library in C")]

use std::ffi::{c_int, c_void};

use candle_core::cuda_backend::cudarc::cudnn::result::{self, CudnnResult};
use candle_core::cuda_backend::cudarc::cudnn::sys::{
    cudnnConvolutionBwdDataAlgo_t as BackwardData, cudnnConvolutionBwdDataAlgoPerf_t,
    cudnnConvolutionBwdFilterAlgo_t as BackwardFilter, cudnnConvolutionBwdFilterAlgoPerf_t,
    cudnnConvolutionFwdAlgo_t as Forward, cudnnConvolutionFwdAlgoPerf_t, cudnnDeterminism_t,
    cudnnStatus_t,
};

use super::Pass;
use super::choice::Candidate;
use super::descriptors::{Descriptors, Handle};

/// One of cuDNN's algorithms, for one of the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Algorithm {
    Output(Forward),
    InputGradient(BackwardData),
    WeightGradient(BackwardFilter),
}

/// The algorithms that every shape has, as far as the documentation says; each is deterministic.
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

/// Room for every algorithm with and without tensor cores: there are eight for the output, fewer for the others.
const ROOM: c_int = 16;

/// Where operands and result of one run lie in the GPU's memory.
pub(super) struct Places {
    /// In the order in which [`Pass`] names them.
    pub(super) operands: [*const c_void; 2],
    pub(super) result: *mut c_void,
    pub(super) workspace: *mut c_void,
    /// In bytes.
    pub(super) workspace_size: usize,
}

/// The algorithms for a product, the most promising first, as cuDNN's heuristics see it: nothing is run.
pub(super) fn candidates(
    handle: &Handle,
    pass: Pass,
    told: &Descriptors,
) -> CudnnResult<Vec<Candidate>> {
    let handle = handle.raw();
    let (x, weight, y) = (told.x.raw(), told.weight.raw(), told.y.raw());
    let convolution = told.convolution.raw();
    // SAFETY: the owners of the handle and of the descriptors live. cuDNN writes entries from the first on, no more
    // than there is room for, and then their number.
    unsafe {
        match pass {
            Pass::Output | Pass::OutputForRelu => listed(|room, count, entries| {
                result::get_convolution_forward_algorithm(
                    handle,
                    x,
                    weight,
                    convolution,
                    y,
                    room,
                    count,
                    entries,
                )
            }),
            Pass::InputGradient => listed(|room, count, entries| {
                result::get_convolution_backward_data_algorithm(
                    handle,
                    weight,
                    y,
                    convolution,
                    x,
                    room,
                    count,
                    entries,
                )
            }),
            Pass::WeightGradient => listed(|room, count, entries| {
                result::get_convolution_backward_filter_algorithm(
                    handle,
                    x,
                    y,
                    convolution,
                    weight,
                    room,
                    count,
                    entries,
                )
            }),
        }
    }
}

/// What a function of cuDNN's puts on a list that it is given.
///
/// # Safety
///
/// `ask` is given the room on a list, where to say how many entries it wrote, and the list. It writes them from the
/// first on, no more than there is room for.
unsafe fn listed<E: Into<Candidate>>(
    ask: impl FnOnce(c_int, *mut c_int, *mut E) -> CudnnResult<()>,
) -> CudnnResult<Vec<Candidate>> {
    let mut entries = Vec::with_capacity(ROOM as usize);
    let mut count = 0;
    ask(ROOM, &mut count, entries.as_mut_ptr())?;
    // SAFETY: that many have been written, says the caller, and there is room for no fewer than ROOM.
    unsafe { entries.set_len(count.clamp(0, ROOM) as usize) };
    Ok(entries.into_iter().map(Into::into).collect())
}

/// An entry of a list is the same in all three but for the algorithm's type.
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
    /// Bytes of memory that it needs to work in, for the kind of multiplication that `told` says.
    pub(super) fn workspace(self, handle: &Handle, told: &Descriptors) -> CudnnResult<usize> {
        let handle = handle.raw();
        let (x, weight, y) = (told.x.raw(), told.weight.raw(), told.y.raw());
        let convolution = told.convolution.raw();
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

    /// Queues the computation on the handle's stream. The result is overwritten.
    ///
    /// `one` and `zero` are of the type of cuDNN's scaling parameters: f64 for f64, otherwise f32.
    ///
    /// # Safety
    ///
    /// The places are in the memory of the handle's device, as large as `told` and [`workspace`](Self::workspace) say,
    /// and stay so until the stream has come to here. Until then nobody else writes to them, or reads the result or the
    /// workspace.
    pub(super) unsafe fn queue<S>(
        self,
        handle: &Handle,
        told: &Descriptors,
        places: &Places,
        [one, zero]: &[S; 2],
    ) -> CudnnResult<()> {
        let handle = handle.raw();
        let (x, weight, y) = (told.x.raw(), told.weight.raw(), told.y.raw());
        let convolution = told.convolution.raw();
        let Places { operands: [first, second], result, workspace, workspace_size } = *places;
        let (one, zero) = ((&raw const *one).cast(), (&raw const *zero).cast());
        // SAFETY: the owners of the handle and of the descriptors live; the caller answers for the places. cuDNN reads
        // `one` and `zero` before it returns.
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
