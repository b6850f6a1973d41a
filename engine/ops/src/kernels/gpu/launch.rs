//! A launch: a kernel with its arguments, which are checked before the driver queues the launch.

use candle_core::backend::BackendDevice as _;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Result, Shape, Storage, Tensor, bail};

use super::kernel::{Argument, Kernel, Operand, Source};
use super::{THREADS, driver};
use crate::kernels::element::lock;

/// The most elements of a tensor: kernels count in 32 bits, and may count one round too far.
const MOST_ELEMENTS: usize = 1 << 31;

/// The largest number of blocks that share the work of an elementwise kernel.
const MOST_BLOCKS: usize = 4096;

const NOT_HERE: &str = "all tensors of an operation must lie on its GPU";

/// Returns the number of blocks for `n` elements, each of which belongs to one thread.
pub(super) fn blocks_of(n: usize) -> usize {
    n.div_ceil(THREADS).clamp(1, MOST_BLOCKS)
}

/// Allocates uninitialised memory for a result: a kernel has to write every element.
pub(crate) fn alloc(gpu: &CudaDevice, elements: usize, dtype: DType) -> Result<CudaStorage> {
    // SAFETY: all bits are valid numbers, and a kernel writes each element before it is read.
    unsafe { gpu.alloc_uninit(&Shape::from(elements), dtype) }
}

/// Calls `work` with the memory of contiguous tensors on a GPU.
pub(crate) fn on_gpu<R>(
    tensors: &[&Tensor],
    work: impl FnOnce(&[Operand<'_>]) -> Result<R>,
) -> Result<R> {
    let locked = lock(tensors);
    let operands = locked.memory().map(|memory| match (memory, memory.1.contiguous_offsets()) {
        ((Storage::Cuda(storage), _), Some((start, end))) => {
            Ok(Operand { storage, start, elements: end - start })
        }
        ((Storage::Cuda(_), layout), None) => {
            bail!("a kernel needs contiguous tensors, got strides {:?}", layout.stride())
        }
        _ => bail!("{NOT_HERE}"),
    });
    work(&operands.collect::<Result<Vec<_>>>()?)
}

/// A kernel with its arguments, in the kernel's order. Results come last.
pub(super) struct Launch<'a> {
    pub(super) kernel: Kernel,
    device: &'a Device,
    arguments: Vec<Argument>,
    tensors: Vec<&'a Tensor>,
    /// The first argument that does not fit the kernel.
    mismatch: Option<String>,
}

impl<'a> Launch<'a> {
    /// Makes a launch of a kernel on a tensor's device, compiled for elements of the tensor's type.
    pub(super) fn new(source: Source, name: &'static str, of: &'a Tensor) -> Self {
        let kernel = Kernel { source, name, dtype: of.dtype(), vector: 1 };
        let (arguments, tensors) = (Vec::new(), Vec::new());
        Self { kernel, device: of.device(), arguments, tensors, mismatch: None }
    }

    /// Compiles the kernel for vectors of this number of elements.
    pub(super) fn by_vectors(mut self, vector: usize) -> Self {
        self.kernel.vector = vector;
        self
    }

    /// Adds a count, or a flag that is 0 or 1.
    pub(super) fn count(self, count: impl Into<usize>) -> Self {
        let count = count.into();
        self.counts_to(count).and(Argument::Bits(count as u64))
    }

    pub(super) fn number(self, number: f64) -> Self {
        self.and(Argument::Bits(number.to_bits()))
    }

    /// Adds tensors that are read or changed, each with this number of elements of the kernel's type.
    pub(super) fn memory(self, of: impl IntoIterator<Item = &'a Tensor>, elements: usize) -> Self {
        let dtype = self.kernel.dtype;
        self.memory_as(dtype, of, elements)
    }

    /// Adds [`memory`](Self::memory) that the kernel accesses in its vectors.
    pub(super) fn vectors(self, of: impl IntoIterator<Item = &'a Tensor>, elements: usize) -> Self {
        of.into_iter().fold(self, |launch, tensor| {
            let (vector, start) = (launch.kernel.vector, tensor.layout().start_offset());
            let problem = || format!("vectors of {vector} cannot begin at element {start}");
            launch.check(start.is_multiple_of(vector), problem).memory([tensor], elements)
        })
    }

    /// Adds [`memory`](Self::memory) of a type that does not depend on the kernel's type.
    pub(super) fn memory_as(
        self,
        dtype: DType,
        of: impl IntoIterator<Item = &'a Tensor>,
        elements: usize,
    ) -> Self {
        of.into_iter().fold(self.counts_to(elements), |launch, tensor| {
            let (found, of) = (tensor.elem_count(), tensor.dtype());
            let is_here = tensor.device().same_device(launch.device);
            let launch = launch.check((found, of) == (elements, dtype), || {
                format!("expected {elements} elements of {dtype:?}, got {found} of {of:?}")
            });
            let mut launch = launch.check(is_here, || NOT_HERE.to_owned());
            launch.tensors.push(tensor);
            let place = launch.tensors.len() - 1;
            launch.and(Argument::Memory(place))
        })
    }

    fn and(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }

    fn counts_to(self, count: usize) -> Self {
        let problem = || format!("kernels count up to 2³¹ elements, and there are {count}");
        self.check(count <= MOST_ELEMENTS, problem)
    }

    pub(super) fn check(mut self, holds: bool, mismatch: impl FnOnce() -> String) -> Self {
        if !holds && self.mismatch.is_none() {
            self.mismatch = Some(mismatch());
        }
        self
    }

    /// Queues the kernel on so many blocks, on the GPU's stream, and returns its last arguments: results in new memory, of so
    /// many elements of a type each. Fails when a tensor is of another type or size, not contiguous, elsewhere, or too large.
    ///
    /// # Safety
    ///
    /// The arguments and results have the number, the order and the types of the kernel's parameters. On so many blocks the
    /// kernel writes every element of its results, and reaches none beyond the elements that the launch has for a tensor.
    pub(super) unsafe fn run<const N: usize>(
        self,
        blocks: usize,
        results: [(usize, DType); N],
    ) -> Result<[Storage; N]> {
        let all = results.iter().fold(self, |launch, &(elements, _)| launch.counts_to(elements));
        let Self { kernel, device, mut arguments, tensors, mismatch } = all;
        if let Some(mismatch) = mismatch {
            bail!("{}: {mismatch}", kernel.name);
        }
        let gpu = device.as_cuda_device()?;
        arguments.extend((tensors.len()..).take(N).map(Argument::Memory));
        let memory = results.iter().map(|&(elements, dtype)| alloc(gpu, elements, dtype));
        let memory = memory.collect::<Result<Vec<_>>>()?;
        on_gpu(&tensors, |operands| {
            let whole = memory.iter().zip(results).map(|(of, (n, _))| Operand::whole(of, n));
            let operands: Vec<_> = operands.iter().copied().chain(whole).collect();
            // SAFETY: the caller guarantees the arguments, and the launch has checked the memory of each.
            unsafe { driver::queue(gpu, kernel, &arguments, &operands, blocks) }
        })?;
        let mut memory = memory.into_iter().map(Storage::Cuda);
        Ok(results.map(|_| memory.next().expect("as much memory as results")))
    }

    /// Does the same as [`run`](Self::run) for a single result, of the kernel's type.
    ///
    /// # Safety
    ///
    /// As for [`run`](Self::run).
    pub(super) unsafe fn compute(self, elements: usize, blocks: usize) -> Result<Storage> {
        let result = (elements, self.kernel.dtype);
        // SAFETY: the caller guarantees the arguments and the result.
        unsafe { self.run(blocks, [result]) }.map(|[result]| result)
    }
}
