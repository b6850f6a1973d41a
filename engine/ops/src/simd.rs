//! Loops compiled for the widest SIMD vectors of the processor.
//!
//! A program compiled for every x86-64 processor can only use vectors of four 32-bit numbers. Most
//! processors today have vectors of eight or sixteen. [`vectorised`] detects the processor's
//! vectors once, and runs a version of the loop that was compiled for them.
//!
//! The compiler vectorises simple loops by itself. A simple loop works on arrays of known length,
//! has no branches, and carries no sum from one element to the next. The order of floating-point
//! additions is part of a program's meaning, and the compiler keeps it. A sum therefore has one
//! accumulator for each lane. Wider vectors compute the same bits, only more of them at a time:
//! nothing is fused or reassociated.

/// Runs `work`, compiled for the widest vectors of this processor.
///
/// Only inlined code is compiled for these vectors. Mark the functions that `work` calls
/// `#[inline(always)]`, and the closure too, as in `vectorised(#[inline(always)] || …)`. A large
/// function without this mark is compiled once, for the baseline processor, and the wide versions
/// call it. Work for other threads is not compiled for wide vectors either. Parallel loops
/// therefore call `vectorised` inside each task.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
