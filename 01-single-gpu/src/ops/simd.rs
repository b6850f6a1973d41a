//! Loops compiled for the widest vector instructions that the processor has.

/// Runs `work`, compiled for the widest vectors that the processor turns out to have.
///
/// Only what is inlined is compiled so. Mark the functions that `work` calls `#[inline(always)]`, and the
/// closure too, as in `vectorised(#[inline(always)] || …)`: one that is large and not marked is compiled
/// once, for the plainest processor, and called from each of the wider ones.
///
/// A sum needs several accumulators to gain from it, because the order of floating-point additions is
/// part of a program's meaning and the compiler keeps it.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
