//! Loops at the width of the processor.
//!
//! A program compiled for every x86-64 uses the instructions that every x86-64 has: four numbers of 32
//! bits at a time. Most processors of today take eight or sixteen. [`vectorised`] asks the processor, once,
//! what it has, and runs a loop that was compiled for it.
//!
//! The compiler turns a loop into vector instructions by itself when the loop is plain: arrays of a length
//! that it knows, no branches, no sum that is carried from one element to the next (it may not reorder a
//! float's additions, so sums are written with one accumulator for each lane). Wider vectors compute the
//! same bits, just more of them at a time: nothing here is fused or reassociated.

/// Runs `work` compiled for the widest vectors that this processor has.
///
/// That holds for what becomes part of the compiled closure: `work` itself and the functions it calls must be
/// marked `#[inline(always)]`. It does not hold for what `work` hands to other threads: parallel loops call
/// this inside each task.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
