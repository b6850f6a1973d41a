//! A GPU as the machine: kernels are compiled when they are first used, and queued on the device's stream.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex};

use candle_core::backend::{BackendDevice as _, BackendStorage as _};
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaStream, DevicePtr as _, DevicePtrMut as _, LaunchConfig, PushKernelArg as _,
    SyncOnDrop,
};
use candle_core::cuda_backend::cudarc::nvrtc::{
    CompileError, CompileOptions, compile_ptx_with_opts,
};
use candle_core::cuda_backend::{CudaStorageSlice, DeviceId};
use candle_core::{CudaDevice, CudaStorage, DType, Error, Result, Shape, bail};

use super::blocks::THREADS;
use super::kernel::{Elements, Kernel, PRELUDE, Source, definitions};
use super::launch::{Argument, Launch};
use super::machine::Machine;
use harness::lock::locked;

impl Machine for CudaDevice {
    type Storage = CudaStorage;

    #[expect(unsafe_code, reason = "candle calls memory with anything in it unsafe")]
    fn room(&self, elements: usize, dtype: DType) -> Result<CudaStorage> {
        // SAFETY: it is numbers, of which all bits are valid, and a kernel writes each of them before it is read.
        unsafe { self.alloc_uninit(&Shape::from(elements), dtype) }
    }

    #[expect(unsafe_code, reason = "nobody can check what a kernel does with its arguments")]
    fn start(&self, launch: Launch<'_, CudaStorage>, blocks: usize) -> Result<()> {
        let Launch { kernel, arguments, .. } = launch;
        let stream = self.cuda_stream();
        // Functions are found, and launched, in whatever context is current.
        stream.context().bind_to_thread().map_err(Error::wrap)?;
        let function = function(self, kernel)?;
        // Whoever else uses the memory is told, when these are dropped, that it was used here.
        let mut uses = Vec::with_capacity(arguments.len());
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(match argument {
                Argument::Read(operand) => {
                    check_gpu(self, operand.storage, kernel)?;
                    let (address, used) = address(operand.storage, &stream)?;
                    uses.push(used);
                    Value::Address(
                        address + (operand.start * operand.dtype().size_in_bytes()) as u64,
                    )
                }
                Argument::Write(storage, start) => {
                    check_gpu(self, storage, kernel)?;
                    let size = storage.dtype().size_in_bytes();
                    let (address, used) = address_to_write(storage, &stream)?;
                    uses.push(used);
                    Value::Address(address + (start * size) as u64)
                }
                Argument::Count(count) => Value::Count(u32::try_from(count).map_err(Error::wrap)?),
                Argument::Number(number) => Value::Number(number),
            });
        }
        let mut call = stream.launch_builder(&function);
        for value in &values {
            match value {
                Value::Address(address) => call.arg(address),
                Value::Count(count) => call.arg(count),
                Value::Number(number) => call.arg(number),
            };
        }
        let shape = LaunchConfig {
            grid_dim: (u32::try_from(blocks).map_err(Error::wrap)?, 1, 1),
            block_dim: (THREADS as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are of the number and types that the kernel has, and no kernel reaches beyond the
        // memory that its counts describe: tests run every launch with the checks of a sanitizer.
        unsafe { call.launch(shape) }.map_err(Error::wrap)?;
        Ok(())
    }
}

/// An argument as a kernel gets it.
enum Value {
    Address(u64),
    Count(u32),
    Number(f64),
}

fn check_gpu(gpu: &CudaDevice, storage: &CudaStorage, kernel: Kernel) -> Result<()> {
    if storage.device().id() != gpu.id() {
        bail!("{}: all tensors of an operation must lie on its GPU", kernel.name);
    }
    Ok(())
}

/// Evaluates an expression with `$slice` standing for the memory of a type that kernels have.
macro_rules! for_memory {
    ($storage:expr, $slice:ident => $body:expr) => {
        match $storage {
            CudaStorageSlice::U32($slice) => $body,
            CudaStorageSlice::BF16($slice) => $body,
            CudaStorageSlice::F32($slice) => $body,
            CudaStorageSlice::F64($slice) => $body,
            _ => bail!("kernels read and write u32, bf16, f32 and f64"),
        }
    };
}

fn address<'a>(storage: &'a CudaStorage, stream: &'a CudaStream) -> Result<(u64, SyncOnDrop<'a>)> {
    Ok(for_memory!(&storage.slice, slice => slice.device_ptr(stream)))
}

fn address_to_write<'a>(
    storage: &'a mut CudaStorage,
    stream: &'a CudaStream,
) -> Result<(u64, SyncOnDrop<'a>)> {
    Ok(for_memory!(&mut storage.slice, slice => slice.device_ptr_mut(stream)))
}

thread_local! {
    /// Kernels that this thread has launched, of each GPU: to ask candle and the driver for one takes as long as the
    /// launch itself.
    static FUNCTIONS: RefCell<HashMap<(DeviceId, Kernel), CudaFunction>> = RefCell::default();
}

/// A kernel as the driver knows it on a GPU whose context is current.
fn function(gpu: &CudaDevice, kernel: Kernel) -> Result<CudaFunction> {
    FUNCTIONS.with_borrow_mut(|functions| match functions.entry((gpu.id(), kernel)) {
        Entry::Occupied(function) => Ok(function.get().clone()),
        Entry::Vacant(place) => {
            let Kernel { source, name, elements } = kernel;
            let module = format!("{source:?} {} by {}", elements.dtype.as_str(), elements.vector);
            let ptx = compiled(source, elements)?;
            let function = gpu.get_or_load_custom_func(name, &module, &ptx)?;
            Ok(place.insert(function.into_cuda_function()).clone())
        }
    })
}

/// A file's kernels in the language that every driver translates for its GPU (PTX); compiled once in a process.
fn compiled(source: Source, elements: Elements) -> Result<Arc<str>> {
    type Compiled = HashMap<(Source, Elements), Arc<str>>;
    static COMPILED: LazyLock<Mutex<Compiled>> = LazyLock::new(Mutex::default);
    let mut compiled = locked(&COMPILED);
    match compiled.entry((source, elements)) {
        Entry::Occupied(entry) => Ok(Arc::clone(entry.get())),
        Entry::Vacant(entry) => Ok(Arc::clone(entry.insert(compile(source, elements)?))),
    }
}

fn compile(source: Source, elements: Elements) -> Result<Arc<str>> {
    let options = CompileOptions {
        // A product that is added to a sum is rounded first, as on the CPU.
        fmad: Some(false),
        // bf16 begins there, with an instruction that rounds to it; newer GPUs have it too.
        arch: (elements.dtype == DType::BF16).then_some("compute_80"),
        options: definitions(elements, THREADS)?.into(),
        ..CompileOptions::default()
    };
    let text = format!("{PRELUDE}\n{}", source.text());
    match compile_ptx_with_opts(text, options) {
        Ok(ptx) => Ok(ptx.to_src().into()),
        Err(CompileError::CompileError { log, .. }) => {
            bail!(
                "{source:?} for {} by {}: the kernels do not compile: {}",
                elements.dtype.as_str(),
                elements.vector,
                log.to_string_lossy()
            )
        }
        Err(error) => bail!("NVRTC cannot compile kernels: {error:?}"),
    }
}

#[cfg(test)]
mod tests {
    use itertools::Itertools as _;

    use super::*;
    use crate::gpu::blocks::VECTOR;

    /// That needs no GPU.
    #[test]
    fn every_kernel_compiles_for_gpus() {
        for source in Source::ALL {
            let types = [DType::F64, DType::F32, DType::BF16];
            for (dtype, vector) in types.into_iter().cartesian_product([1, VECTOR]) {
                let ptx = compile(source, Elements { dtype, vector }).unwrap();
                for kernel in source.kernels() {
                    assert!(ptx.contains(&format!(".entry {kernel}(")), "{kernel}: {ptx}");
                }
                // A vector is one access, and never put together in memory.
                let has_vectors = matches!(source, Source::BatchNorm | Source::Relu | Source::Sum);
                assert_eq!(ptx.contains("ld.global.v"), has_vectors && vector > 1, "{source:?}");
                assert!(!ptx.contains(".local"), "{source:?}");
                let rounds = dtype == DType::BF16 && source != Source::Transpose;
                assert_eq!(ptx.contains("cvt.rn.bf16.f32"), rounds, "{source:?} {dtype:?}");
            }
        }
    }

    #[test]
    fn a_type_without_kernels_is_refused() {
        let error = compile(Source::Relu, Elements { dtype: DType::U32, vector: 1 });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("for f64, f32 and bf16, not for u32"), "{error}");
    }
}
