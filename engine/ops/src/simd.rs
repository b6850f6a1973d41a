//! Loops at the width of the processor.
//!
//! A program compiled for every x86-64 uses the instructions that every x86-64 has: four numbers of 32
//! bits at a time. Most processors of today take eight or sixteen. [`vectorised`] asks the processor, once,
//! what it has, and runs a loop that was compiled for it.
//!
//! The compiler turns a loop into vector instructions by itself when the loop is plain: arrays of a length
//! that it knows, no branches, no sum that is carried from one element to the next. (The order of a float's
//! additions is part of a program's meaning and is kept, so a sum has an accumulator for each lane.)
//! Wider vectors compute the same bits, just more of them at a time: nothing is fused or reassociated.

/// Runs `work`, compiled for the widest vectors that this processor has.
///
/// Only what is inlined is compiled so. Mark the functions that `work` calls `#[inline(always)]`, and the
/// closure too, as in `vectorised(#[inline(always)] || …)`: one that is large and not marked is compiled
/// once, for the plainest processor, and called from each of the wider ones. What `work` hands to other
/// threads is not compiled so either: parallel loops call this inside each task.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
