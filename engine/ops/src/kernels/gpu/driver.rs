//! NVRTC, which compiles a file of kernels to PTX, and CUDA's driver, which translates PTX for its GPU and queues kernels.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex};

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaStream, DevicePtr as _, LaunchConfig, PushKernelArg as _, SyncOnDrop,
};
use candle_core::cuda_backend::cudarc::nvrtc::{self, CompileError, CompileOptions};
use candle_core::cuda_backend::{CudaStorageSlice, DeviceId};
use candle_core::{CudaDevice, DType, Error, Result, bail};
use harness::lock::locked;

use super::THREADS;
use super::kernel::{Argument, Kernel, Operand, Source};

/// Queues a kernel on this number of blocks, on the GPU's stream.
///
/// # Safety
///
/// The arguments have the number, order and types of the kernel's parameters, and it reaches no element beyond an operand's.
pub(super) unsafe fn queue(
    gpu: &CudaDevice,
    kernel: Kernel,
    arguments: &[Argument],
    operands: &[Operand<'_>],
    blocks: usize,
) -> Result<()> {
    let stream = gpu.cuda_stream();
    // The driver finds and launches functions in the context that is current.
    stream.context().bind_to_thread().map_err(Error::wrap)?;
    let function = kernel.on(gpu)?;
    // Addresses, with cudarc's guards for the memory that the launch uses, held until the launch is queued.
    let memory = operands.iter().map(|&operand| address(operand, &stream));
    let memory = memory.collect::<Result<Vec<_>>>()?;
    let bits = arguments.iter().map(|argument| match *argument {
        Argument::Bits(bits) => bits,
        Argument::Memory(place) => memory[place].0,
    });
    let bits: Vec<u64> = bits.collect();
    let mut call = stream.launch_builder(&function);
    for bits in &bits {
        // The driver reads as many bytes as the kernel's parameter has, the lowest first.
        call.arg(bits);
    }
    let shape = LaunchConfig {
        grid_dim: (u32::try_from(blocks).map_err(Error::wrap)?, 1, 1),
        block_dim: (THREADS as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the caller guarantees that the arguments fit the kernel, and `address` that they lie in allocated memory.
    unsafe { call.launch(shape) }.map_err(Error::wrap)?;
    Ok(())
}

/// Returns the address of an operand's first element in its GPU's memory, which must hold all its elements. The memory is
/// borrowed for reading, and a kernel may write to it, as candle's own kernels do.
pub(crate) fn address<'a>(
    Operand { storage, start, elements }: Operand<'a>,
    stream: &'a CudaStream,
) -> Result<(u64, SyncOnDrop<'a>)> {
    let ((first, used), len) = match &storage.slice {
        CudaStorageSlice::U32(slice) => (slice.device_ptr(stream), slice.len()),
        CudaStorageSlice::BF16(slice) => (slice.device_ptr(stream), slice.len()),
        CudaStorageSlice::F32(slice) => (slice.device_ptr(stream), slice.len()),
        CudaStorageSlice::F64(slice) => (slice.device_ptr(stream), slice.len()),
        _ => bail!("kernels read and write u32, bf16, f32 and f64"),
    };
    if len < start + elements {
        bail!("{elements} elements from element {start} on are not in memory of {len} elements");
    }
    Ok((first + (start * storage.dtype().size_in_bytes()) as u64, used))
}

impl Source {
    /// Returns the kernels, without the prelude.
    fn text(self) -> &'static str {
        match self {
            Self::BatchNorm => include_str!("batch_norm.cu"),
            Self::Bias => include_str!("bias.cu"),
            Self::CrossEntropy => include_str!("cross_entropy.cu"),
            Self::Elementwise => include_str!("elementwise.cu"),
            Self::Embedding => include_str!("embedding.cu"),
            Self::Pooling => include_str!("pooling.cu"),
            Self::Update => include_str!("update.cu"),
        }
    }
}

impl Kernel {
    /// Returns the kernel on `gpu`, whose context is current.
    fn on(self, gpu: &CudaDevice) -> Result<CudaFunction> {
        thread_local! {
            /// The kernels that this thread has launched. A query to candle and the driver takes as long as a launch.
            static FUNCTIONS: RefCell<HashMap<(DeviceId, Kernel), CudaFunction>> = RefCell::default();
        }
        FUNCTIONS.with_borrow_mut(|functions| {
            if let Some(function) = functions.get(&(gpu.id(), self)) {
                return Ok(function.clone());
            }
            let Self { source, name, dtype, vector } = self;
            let module = format!("{source:?} {} by {vector}", dtype.as_str());
            let ptx = ptx(source, dtype, vector)?;
            let function = gpu.get_or_load_custom_func(name, &module, &ptx)?.into_cuda_function();
            functions.insert((gpu.id(), self), function.clone());
            Ok(function)
        })
    }
}

/// Returns a file's kernels as PTX, compiled once in a process for each type of elements and vectors.
fn ptx(source: Source, dtype: DType, vector: usize) -> Result<Arc<str>> {
    type Compiled = HashMap<(Source, DType, usize), Arc<str>>;
    static COMPILED: LazyLock<Mutex<Compiled>> = LazyLock::new(Mutex::default);
    let mut compiled = locked(&COMPILED);
    let ptx = match compiled.entry((source, dtype, vector)) {
        Entry::Occupied(ptx) => ptx.into_mut(),
        Entry::Vacant(place) => place.insert(compile(source, dtype, vector)?.into()),
    };
    Ok(Arc::clone(ptx))
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
    let text = concat!(include_str!("prelude.cuh"), "\n").to_owned() + source.text();
    match nvrtc::compile_ptx_with_opts(text, options) {
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
    use crate::kernels::gpu::VECTOR;

    const ALL: [Source; 7] = [
        Source::BatchNorm,
        Source::Bias,
        Source::CrossEntropy,
        Source::Elementwise,
        Source::Embedding,
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
