//! A launch: a kernel with its arguments, which are checked before the launch is queued.

use candle_core::backend::{BackendDevice as _, BackendStorage as _};
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{
    CudaStream, DevicePtr as _, LaunchConfig, PushKernelArg as _, SyncOnDrop,
};
use candle_core::{CudaDevice, CudaStorage, DType, Error, Result, Shape, bail};

use super::kernels::{Kernel, Source, THREADS};
use super::operand::Operand;

/// The most elements of a tensor: kernels count in 32 bits, and may count one round too far.
const MOST_ELEMENTS: usize = 1 << 31;

/// The largest number of blocks that share the work of an elementwise kernel.
const MOST_BLOCKS: usize = 4096;

/// Returns the number of blocks for `n` elements, each of which belongs to one thread.
pub(crate) fn blocks_of(n: usize) -> usize {
    n.div_ceil(THREADS).clamp(1, MOST_BLOCKS)
}

/// Allocates uninitialised memory for a result: a kernel has to write every element.
#[expect(unsafe_code, reason = "candle calls memory with anything in it unsafe")]
pub(crate) fn alloc(gpu: &CudaDevice, elements: usize, dtype: DType) -> Result<CudaStorage> {
    // SAFETY: all bits are valid numbers, and a kernel writes each element before it is read.
    unsafe { gpu.alloc_uninit(&Shape::from(elements), dtype) }
}

enum Argument<'a> {
    Memory(Operand<'a>),
    /// The bits of a number. A count is the lower half of the bits.
    Bits(u64),
}

/// A kernel with its arguments, in the kernel's order.
pub(crate) struct Launch<'a> {
    gpu: &'a CudaDevice,
    kernel: Kernel,
    arguments: Vec<Argument<'a>>,
    /// The first argument that does not fit the kernel.
    mismatch: Option<String>,
}

impl<'a> Launch<'a> {
    /// Makes a launch of a kernel that is compiled for elements of this type.
    pub(crate) fn new(
        gpu: &'a CudaDevice,
        source: Source,
        name: &'static str,
        dtype: DType,
    ) -> Self {
        let kernel = Kernel { source, name, dtype, vector: 1 };
        Self { gpu, kernel, arguments: Vec::new(), mismatch: None }
    }

    /// Compiles the kernel for vectors of this number of elements.
    pub(crate) fn by_vectors(mut self, vector: usize) -> Self {
        self.kernel.vector = vector;
        self
    }

    /// Returns the number of elements in the vectors that the kernel is compiled for.
    pub(crate) fn vector(&self) -> usize {
        self.kernel.vector
    }

    pub(crate) fn count(self, count: usize) -> Self {
        self.check(count <= MOST_ELEMENTS, || {
            format!("kernels count up to 2³¹ elements, and there are {count}")
        })
        .and(Argument::Bits(count as u64))
    }

    pub(crate) fn flag(self, yes: bool) -> Self {
        self.count(yes.into())
    }

    pub(crate) fn number(self, number: f64) -> Self {
        self.and(Argument::Bits(number.to_bits()))
    }

    /// Adds memory that is read or changed: this number of elements of the kernel's type.
    pub(crate) fn memory(self, operand: Operand<'a>, elements: usize) -> Self {
        let dtype = self.kernel.dtype;
        self.memory_as(dtype, operand, elements)
    }

    /// Adds [`memory`](Self::memory) that the kernel accesses in its vectors.
    pub(crate) fn vectors(self, operand: Operand<'a>, elements: usize) -> Self {
        let (vector, start) = (self.kernel.vector, operand.start);
        self.check(start.is_multiple_of(vector), || {
            format!("vectors of {vector} cannot begin at element {start}")
        })
        .memory(operand, elements)
    }

    /// Adds [`memory`](Self::memory) of a fixed type, which does not depend on the kernel's type.
    pub(crate) fn memory_as(self, dtype: DType, operand: Operand<'a>, elements: usize) -> Self {
        let found = (operand.elements, operand.dtype());
        self.check(elements <= MOST_ELEMENTS && found == (elements, dtype), || {
            format!("expected {elements} elements of {dtype:?}, got {} of {:?}", found.0, found.1)
        })
        .and_memory(operand)
    }

    /// Adds the memory of a result, which [`alloc`] has returned.
    pub(crate) fn result(self, storage: &'a mut CudaStorage) -> Self {
        // What the kernel writes is not counted here.
        self.and_memory(Operand::whole(storage, 0))
    }

    /// Allocates n elements of the kernel's type as the kernel's last argument, queues the kernel,
    /// and returns these elements: the result.
    pub(crate) fn compute(self, n: usize, blocks: usize) -> Result<CudaStorage> {
        let mut result = alloc(self.gpu, n, self.kernel.dtype)?;
        let launch: Launch<'_> = self;
        launch.result(&mut result).run(blocks)?;
        Ok(result)
    }

    fn and_memory(self, operand: Operand<'a>) -> Self {
        let is_here = operand.gpu().id() == self.gpu.id();
        self.check(is_here, || "all tensors of an operation must lie on its GPU".to_owned())
            .and(Argument::Memory(operand))
    }

    fn and(mut self, argument: Argument<'a>) -> Self {
        self.arguments.push(argument);
        self
    }

    fn check(mut self, holds: bool, mismatch: impl FnOnce() -> String) -> Self {
        if !holds && self.mismatch.is_none() {
            self.mismatch = Some(mismatch());
        }
        self
    }

    /// Queues the kernel on this number of blocks, on the GPU's stream. Fails when an operand differs from the kernel's in
    /// type or size, is on another GPU, or is larger than the kernel can count.
    #[expect(unsafe_code, reason = "nobody can check what a kernel does with its arguments")]
    pub(crate) fn run(self, blocks: usize) -> Result<()> {
        let Self { gpu, kernel, arguments, mismatch } = self;
        if let Some(mismatch) = mismatch {
            bail!("{}: {mismatch}", kernel.name);
        }
        let stream = gpu.cuda_stream();
        // The driver finds and launches functions in the context that is current.
        stream.context().bind_to_thread().map_err(Error::wrap)?;
        let function = kernel.on(gpu)?;
        let mut bits = Vec::with_capacity(arguments.len());
        // cudarc's guards for the memory that the launch uses, held until the launch is queued.
        let mut uses = Vec::with_capacity(arguments.len());
        for argument in arguments {
            bits.push(match argument {
                Argument::Bits(bits) => bits,
                Argument::Memory(operand) => {
                    let (address, used) = address(operand, &stream)?;
                    uses.push(used);
                    address
                }
            });
        }
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
        // SAFETY: the arguments have the number and types of the kernel's parameters, and no kernel
        // reaches beyond the memory that its counts describe: tests run every launch on a simulated
        // GPU, which reports such accesses.
        unsafe { call.launch(shape) }.map_err(Error::wrap)?;
        Ok(())
    }
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

/// Computes each element of a result from the operands' elements at the same index, by a kernel of
/// `elementwise.cu`, in vectors if all operands begin and end at a vector's boundary.
pub(crate) fn elementwise<const N: usize>(
    kernel: &'static str,
    operands: [Operand<'_>; N],
) -> Result<CudaStorage> {
    let (first, n) = (operands[0], operands[0].elements);
    let vector = operands.iter().map(Operand::vector).min().unwrap_or(1);
    let launch = Launch::new(first.gpu(), Source::Elementwise, kernel, first.dtype());
    operands
        .into_iter()
        .fold(launch.by_vectors(vector).count(n / vector), |launch, operand| {
            launch.vectors(operand, n)
        })
        .compute(n, blocks_of(n / vector))
}
