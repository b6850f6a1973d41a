//! Loops compiled for the widest vector instructions that the processor has.

/// Runs `work`, compiled for the widest vectors that the processor turns out to have.
///
/// Only what is inlined into `work` is compiled so: mark the functions it calls `#[inline(always)]`.
/// A sum needs several accumulators to gain from it, because the order of floating-point additions is
/// part of a program's meaning and the compiler keeps it.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
