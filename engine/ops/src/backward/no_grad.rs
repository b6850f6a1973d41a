//! Forward passes without gradients, like PyTorch's `no_grad`.
//!
//! A result that carries a gradient keeps its inputs, and these keep their own inputs. The graph
//! therefore holds all intermediate results of a forward pass in memory until the last result is
//! dropped. Evaluating a model needs only the last result.

use std::cell::Cell;

thread_local! {
    /// Whether this thread runs within [`no_grad`].
    static NO_GRAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether results of operations in this thread carry no gradient.
pub(super) fn is_no_grad() -> bool {
    NO_GRAD.get()
}

/// Runs `run` without recording a tape, like PyTorch's `no_grad`.
///
/// No result that [`record`](super::record) makes within `run` carries a gradient. An input of an
/// operation is freed as soon as nothing else uses it. All values are the same, to the last bit.
///
/// The setting applies to this thread only: work that `run` gives to another thread needs its own
/// call. candle's own operations on variables still carry gradients.
///
/// ```
/// use candle_core::{Device, Var};
/// use ops::backward::no_grad;
/// use ops::relu;
///
/// let x = Var::new(&[-1f32, 2.0], &Device::Cpu)?;
/// assert!(relu(&x)?.track_op());
/// assert!(!no_grad(|| relu(&x))?.track_op());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn no_grad<R>(run: impl FnOnce() -> R) -> R {
    /// Restores the previous setting, even if `run` panics.
    struct Before(bool);

    impl Drop for Before {
        fn drop(&mut self) {
            NO_GRAD.set(self.0);
        }
    }

    let _before = Before(NO_GRAD.replace(true));
    run()
}
