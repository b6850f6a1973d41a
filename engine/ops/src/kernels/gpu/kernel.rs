//! What the driver queues: a kernel, compiled for a type of elements, its arguments and its operands.

use candle_core::{CudaStorage, DType};

/// The memory of a contiguous tensor.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only the driver reads operands"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub(crate) storage: &'a CudaStorage,
    /// The number of the storage's elements before the tensor's first element.
    pub(crate) start: usize,
    pub(crate) elements: usize,
}

impl<'a> Operand<'a> {
    /// Makes an operand of a whole storage, which was allocated for this number of elements.
    pub(crate) fn whole(storage: &'a CudaStorage, elements: usize) -> Self {
        Self { storage, start: 0, elements }
    }
}

/// The files of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    BatchNorm,
    Bias,
    CrossEntropy,
    Elementwise,
    Embedding,
    Pooling,
    Update,
}

/// A kernel, compiled for one type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kernel {
    pub(super) source: Source,
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    /// The number of elements in the kernel's vectors: [`VECTOR`](super::VECTOR) or 1.
    pub(super) vector: usize,
}

/// An argument of a kernel.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only the driver reads arguments"))]
pub(super) enum Argument {
    /// The operand at this index.
    Memory(usize),
    /// The bits of a number. A count is the lower half of the bits.
    Bits(u64),
}
