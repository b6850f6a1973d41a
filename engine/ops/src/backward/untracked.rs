//! Forward passes that nobody differentiates.
//!
//! A result that carries a gradient keeps its inputs, and these keep theirs: all that a forward pass computes lies in
//! memory until its last result is dropped. Whoever tests a model wants the last result alone.

use std::cell::Cell;

thread_local! {
    /// Whether this thread is within [`untracked`].
    static UNTRACKED: Cell<bool> = const { Cell::new(false) };
}

/// Whether results of operations are to carry no gradient, in this thread.
pub(super) fn is_untracked() -> bool {
    UNTRACKED.get()
}

/// Runs something in which no result of [`apply1`](super::apply1) to [`apply3`](super::apply3) carries a gradient, as
/// PyTorch's `no_grad` does: what an operation was applied to is dropped as soon as nobody else needs it. Values are the
/// same, to the last bit.
///
/// It holds for this thread alone: what `run` has other threads do is theirs to wrap. candle's own operations on variables
/// are not concerned.
///
/// ```
/// use candle_core::{Device, Var};
/// use ops::backward::untracked;
/// use ops::relu;
///
/// let x = Var::new(&[-1f32, 2.0], &Device::Cpu)?;
/// assert!(relu(&x)?.track_op());
/// assert!(!untracked(|| relu(&x))?.track_op());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn untracked<R>(run: impl FnOnce() -> R) -> R {
    /// Puts back what was there before, even when `run` panics.
    struct Before(bool);

    impl Drop for Before {
        fn drop(&mut self) {
            UNTRACKED.set(self.0);
        }
    }

    let _before = Before(UNTRACKED.replace(true));
    run()
}
