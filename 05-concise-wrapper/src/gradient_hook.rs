//! A parameter that passes its gradient on during the backward pass.
//!
//! An ordinary backward pass returns all gradients at its end. But the gradient of the last layer is
//! complete soon after the start, and could travel to the other devices from then on. Therefore each
//! parameter is the result of an operation with an unused input. The backward pass calls this operation's
//! backward function as soon as the gradient of the parameter is complete, and the function calls the hook:
//!
//! ```text
//! forward     anchor ─ hook ─→ W ──→ conv ──→ …        W has its value already
//! backward    anchor   hook ←─ dW ←─ conv ←── …        dW is complete: on_gradient(slot, dW)
//! ```
//!
//! The hook has no cost, and layers use W like any other tensor.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor, Var};

use ops::backward::record_copy;

/// A receiver of gradients.
pub(crate) trait GradientHook: Send + Sync {
    /// Receives the gradient of the parameter with this number, complete for this backward pass.
    fn on_gradient(&self, slot: usize, gradient: &Tensor) -> Result<()>;
}

/// Makes a parameter with this value, in memory of its own. The backward pass calls `hook` with the
/// parameter's gradient, in the type `kept` in which the parameter is kept.
///
/// `slot` is the parameter's number. Update the parameter in place.
// ANCHOR: hook
pub(crate) fn with_gradient_hook(
    value: &Tensor,
    kept: DType,
    slot: usize,
    hook: Arc<dyn GradientHook>,
) -> Result<Tensor> {
    let anchor = Var::zeros((), DType::F32, value.device())?;
    record_copy("gradient hook", value, [&anchor], move |_, gradient| {
        hook.on_gradient(slot, &gradient.to_dtype(kept)?)?;
        Ok([None])
    })
}
// ANCHOR_END: hook
