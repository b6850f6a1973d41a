//! Kernels: CUDA C++ in `kernels/*.cu`, compiled at their first use.
//!
//! NVRTC compiles a file once in a process for each element type. The result is PTX, which every
//! driver translates for its GPU.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex};

use candle_core::cuda_backend::DeviceId;
use candle_core::cuda_backend::cudarc::driver::CudaFunction;
use candle_core::cuda_backend::cudarc::nvrtc::{
    CompileError, CompileOptions, compile_ptx_with_opts,
};
use candle_core::{CudaDevice, DType, Result, bail};
use harness::lock::locked;

/// The number of threads in a block: a power of two, because blocks add up in a tree.
pub(crate) const THREADS: usize = 256;

/// The number of adjacent elements that a thread reads or writes at once, if the alignment allows.
/// Four elements of f32 are 16 bytes, the most that a GPU moves for a thread.
pub(crate) const VECTOR: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    BatchNorm,
    Bias,
    CrossEntropy,
    Elementwise,
    Pooling,
    Update,
}

impl Source {
    /// Returns the kernels, without the prelude.
    fn text(self) -> &'static str {
        match self {
            Self::BatchNorm => include_str!("kernels/batch_norm.cu"),
            Self::Bias => include_str!("kernels/bias.cu"),
            Self::CrossEntropy => include_str!("kernels/cross_entropy.cu"),
            Self::Elementwise => include_str!("kernels/elementwise.cu"),
            Self::Pooling => include_str!("kernels/pooling.cu"),
            Self::Update => include_str!("kernels/update.cu"),
        }
    }
}

/// A kernel, compiled for one type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kernel {
    pub(super) source: Source,
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    /// The number of elements in the vectors that the kernel reads and writes: [`VECTOR`] or 1.
    pub(super) vector: usize,
}

impl Kernel {
    /// Returns the kernel on `gpu`, whose context is current.
    pub(super) fn on(self, gpu: &CudaDevice) -> Result<CudaFunction> {
        thread_local! {
            /// The kernels that this thread has launched on each GPU. A query to candle and the
            /// driver takes as long as the launch itself.
            static FUNCTIONS: RefCell<HashMap<(DeviceId, Kernel), CudaFunction>> = RefCell::default();
        }
        FUNCTIONS.with_borrow_mut(|functions| match functions.entry((gpu.id(), self)) {
            Entry::Occupied(function) => Ok(function.get().clone()),
            Entry::Vacant(place) => {
                let Self { source, name, dtype, vector } = self;
                let module = format!("{source:?} {} by {vector}", dtype.as_str());
                let function =
                    gpu.get_or_load_custom_func(name, &module, &ptx(source, dtype, vector)?)?;
                Ok(place.insert(function.into_cuda_function()).clone())
            }
        })
    }
}

/// Returns a file's kernels as PTX, compiled once in a process.
fn ptx(source: Source, dtype: DType, vector: usize) -> Result<Arc<str>> {
    type Compiled = HashMap<(Source, DType, usize), Arc<str>>;
    static COMPILED: LazyLock<Mutex<Compiled>> = LazyLock::new(Mutex::default);
    match locked(&COMPILED).entry((source, dtype, vector)) {
        Entry::Occupied(ptx) => Ok(Arc::clone(ptx.get())),
        Entry::Vacant(place) => {
            Ok(Arc::clone(place.insert(compile(source, dtype, vector)?.into())))
        }
    }
}

fn compile(source: Source, dtype: DType, vector: usize) -> Result<String> {
    let stored = match dtype {
        DType::F64 => "STORED_F64",
        DType::F32 => "STORED_F32",
        DType::BF16 => "STORED_BF16",
        other => bail!("there are kernels for f64, f32 and bf16, not for {}", other.as_str()),
    };
    let options = CompileOptions {
        // A product is rounded before it is added to a sum, as on the CPU.
        fmad: Some(false),
        // bf16 begins with compute capability 8.0.
        arch: (dtype == DType::BF16).then_some("compute_80"),
        options: vec![
            format!("-D{stored}"),
            format!("-DVECTOR={vector}"),
            format!("-DTHREADS={THREADS}"),
        ],
        ..CompileOptions::default()
    };
    let text = concat!(include_str!("kernels/prelude.cuh"), "\n").to_owned() + source.text();
    match compile_ptx_with_opts(text, options) {
        Ok(ptx) => Ok(ptx.to_src()),
        Err(CompileError::CompileError { log, .. }) => {
            let log = log.to_string_lossy();
            bail!("{source:?} for {stored} by {vector}: the kernels do not compile: {log}")
        }
        Err(error) => bail!("NVRTC cannot compile kernels: {error:?}"),
    }
}

#[cfg(test)]
mod tests {
    use itertools::Itertools as _;

    use super::*;

    const ALL: [Source; 6] = [
        Source::BatchNorm,
        Source::Bias,
        Source::CrossEntropy,
        Source::Elementwise,
        Source::Pooling,
        Source::Update,
    ];

    /// NVRTC needs no GPU.
    #[test]
    fn every_kernel_compiles_for_gpus() {
        for source in ALL {
            let types = [DType::F64, DType::F32, DType::BF16];
            for (dtype, vector) in types.into_iter().cartesian_product([1, VECTOR]) {
                let ptx = compile(source, dtype, vector).unwrap();
                for kernel in source.text().split("\nKERNEL ").skip(1) {
                    let name = kernel.split('(').next().unwrap();
                    assert!(ptx.contains(&format!(".entry {name}(")), "{name}: {ptx}");
                }
                // A vector is one access, never assembled in memory.
                let has_vectors = matches!(source, Source::BatchNorm | Source::Elementwise);
                assert_eq!(ptx.contains("ld.global.v"), has_vectors && vector > 1, "{source:?}");
                assert!(!ptx.contains(".local"), "{source:?}");
                let rounds = dtype == DType::BF16;
                assert_eq!(ptx.contains("cvt.rn.bf16.f32"), rounds, "{source:?} {dtype:?}");
            }
        }
    }

    #[test]
    fn a_type_without_kernels_is_refused() {
        let error = compile(Source::Elementwise, DType::U32, 1).unwrap_err().to_string();
        assert!(error.contains("for f64, f32 and bf16, not for u32"), "{error}");
    }
}
