//! What the driver queues: a kernel, compiled for a type of elements, and its arguments.

use candle_core::DType;

use super::operand::Operand;

/// The files of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    BatchNorm,
    Bias,
    CrossEntropy,
    Elementwise,
    Pooling,
    Update,
}

/// A kernel, compiled for one type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kernel {
    pub(super) source: Source,
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    /// The number of elements in the vectors that the kernel reads and writes: [`VECTOR`](super::VECTOR) or 1.
    pub(super) vector: usize,
}

/// An argument of a kernel.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only the driver reads arguments"))]
pub(super) enum Argument<'a> {
    Memory(Operand<'a>),
    /// The bits of a number. A count is the lower half of the bits.
    Bits(u64),
}
