//! A launch: a kernel with its arguments, which are checked before the launch is queued.

use candle_core::backend::BackendDevice as _;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Storage, Tensor, bail};

use super::kernel::{Argument, Kernel, Source};
use super::operand::{Operand, on_gpu};
use super::{THREADS, driver};

/// The most elements of a tensor: kernels count in 32 bits, and may count one round too far.
const MOST_ELEMENTS: usize = 1 << 31;

/// The largest number of blocks that share the work of an elementwise kernel.
const MOST_BLOCKS: usize = 4096;

/// Returns the number of blocks for `n` elements, each of which belongs to one thread.
pub(super) fn blocks_of(n: usize) -> usize {
    n.div_ceil(THREADS).clamp(1, MOST_BLOCKS)
}

/// Allocates uninitialised memory for a result: a kernel has to write every element.
pub(crate) fn alloc(gpu: &CudaDevice, elements: usize, dtype: DType) -> Result<CudaStorage> {
    // SAFETY: all bits are valid numbers, and a kernel writes each element before it is read.
    unsafe { gpu.alloc_uninit(&Shape::from(elements), dtype) }
}

impl Source {
    /// Runs a kernel for the type of the first tensor on this number of blocks, and returns its last argument: a result of n
    /// elements of this type. `arguments` adds all other arguments.
    ///
    /// # Safety
    ///
    /// As for [`Launch::run`]. The kernel writes all n elements of the result.
    pub(super) unsafe fn compute<const N: usize>(
        self,
        kernel: &'static str,
        tensors: [&Tensor; N],
        (n, blocks): (usize, usize),
        arguments: impl for<'a> FnOnce(Launch<'a>, [Operand<'a>; N]) -> Launch<'a>,
    ) -> Result<Storage> {
        on_gpu(tensors, |operands| {
            let (gpu, dtype) = (operands[0].gpu(), operands[0].dtype());
            let mut result = alloc(gpu, n, dtype)?;
            let launch = arguments(Launch::new(gpu, self, kernel, dtype), operands);
            // SAFETY: the caller guarantees the arguments, of which the result is the last.
            unsafe { launch.result(dtype, &mut result, n).run(blocks) }?;
            Ok(Storage::Cuda(result))
        })
    }
}

/// A kernel with its arguments, in the kernel's order.
pub(super) struct Launch<'a> {
    gpu: &'a CudaDevice,
    kernel: Kernel,
    arguments: Vec<Argument<'a>>,
    /// The first argument that does not fit the kernel.
    mismatch: Option<String>,
}

impl<'a> Launch<'a> {
    /// Makes a launch of a kernel that is compiled for elements of this type.
    pub(super) fn new(
        gpu: &'a CudaDevice,
        source: Source,
        name: &'static str,
        dtype: DType,
    ) -> Self {
        let kernel = Kernel { source, name, dtype, vector: 1 };
        Self { gpu, kernel, arguments: Vec::new(), mismatch: None }
    }

    /// Compiles the kernel for vectors of this number of elements.
    pub(super) fn by_vectors(mut self, vector: usize) -> Self {
        self.kernel.vector = vector;
        self
    }

    /// Returns the number of elements in the vectors that the kernel is compiled for.
    pub(super) fn vector(&self) -> usize {
        self.kernel.vector
    }

    pub(super) fn count(self, count: usize) -> Self {
        self.check(count <= MOST_ELEMENTS, || {
            format!("kernels count up to 2³¹ elements, and there are {count}")
        })
        .and(Argument::Bits(count as u64))
    }

    pub(super) fn flag(self, yes: bool) -> Self {
        self.count(yes.into())
    }

    pub(super) fn number(self, number: f64) -> Self {
        self.and(Argument::Bits(number.to_bits()))
    }

    /// Adds memory that is read or changed: this number of elements of the kernel's type.
    pub(super) fn memory(self, operand: Operand<'a>, elements: usize) -> Self {
        let dtype = self.kernel.dtype;
        self.memory_as(dtype, operand, elements)
    }

    /// Adds [`memory`](Self::memory) that the kernel accesses in its vectors.
    pub(super) fn vectors(self, operand: Operand<'a>, elements: usize) -> Self {
        let (vector, start) = (self.kernel.vector, operand.start);
        self.check(start.is_multiple_of(vector), || {
            format!("vectors of {vector} cannot begin at element {start}")
        })
        .memory(operand, elements)
    }

    /// Adds [`memory`](Self::memory) of a fixed type, which does not depend on the kernel's type.
    pub(super) fn memory_as(self, dtype: DType, operand: Operand<'a>, elements: usize) -> Self {
        let found = (operand.elements, operand.dtype());
        let is_here = operand.gpu().id() == self.gpu.id();
        self.check(elements <= MOST_ELEMENTS && found == (elements, dtype), || {
            format!("expected {elements} elements of {dtype:?}, got {} of {:?}", found.0, found.1)
        })
        .check(is_here, || "all tensors of an operation must lie on its GPU".to_owned())
        .and(Argument::Memory(operand))
    }

    /// Adds the memory of a result: all of what [`alloc`] has returned for this number of elements of this type.
    pub(super) fn result(
        self,
        dtype: DType,
        storage: &'a mut CudaStorage,
        elements: usize,
    ) -> Self {
        self.memory_as(dtype, Operand::whole(storage, elements), elements)
    }

    fn and(mut self, argument: Argument<'a>) -> Self {
        self.arguments.push(argument);
        self
    }

    pub(super) fn check(mut self, holds: bool, mismatch: impl FnOnce() -> String) -> Self {
        if !holds && self.mismatch.is_none() {
            self.mismatch = Some(mismatch());
        }
        self
    }

    /// Queues the kernel on this number of blocks, on the GPU's stream. Fails when an operand differs from the kernel's in
    /// type or size, is on another GPU, or is larger than the kernel can count.
    ///
    /// # Safety
    ///
    /// The arguments have the number, the order and the types of the kernel's parameters. On this number of blocks the kernel
    /// reaches no element of an operand beyond the number of elements that the launch has for the operand.
    pub(super) unsafe fn run(self, blocks: usize) -> Result<()> {
        let Self { gpu, kernel, arguments, mismatch } = self;
        match mismatch {
            Some(mismatch) => bail!("{}: {mismatch}", kernel.name),
            // SAFETY: the caller guarantees the arguments, and the launch has checked the memory of each.
            None => unsafe { driver::queue(gpu, kernel, &arguments, blocks) },
        }
    }
}
