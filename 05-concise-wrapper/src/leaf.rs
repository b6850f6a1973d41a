//! A parameter that hands its gradient out during the backward pass.
//!
//! An ordinary parameter is silent: its gradient is found in a list when the whole backward pass is over.
//! But the gradient of the last layer is finished when the backward pass has hardly begun, and could
//! already be on its way to the other devices. So a parameter is made the result of an operation, on a
//! number that nobody uses; the operation's backward is called as soon as everything that used the
//! parameter has added its share, and passes the gradient on:
//!
//! ```text
//! forward     anchor ─ leaf ─→ W ──→ conv ──→ …        W is there already: leaf computes nothing
//! backward    anchor   leaf ←─ dW ←─ conv ←── …        dW is complete: on_gradient(slot, dW)
//! ```
//!
//! It costs nothing, and the layers notice nothing: to them W is a tensor like any other.

use std::sync::Arc;

use candle_core::{CpuStorage, CudaStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, Var};

use ops::backward::{Given, apply1};

/// Who is told of gradients.
pub(crate) trait OnGradient: Send + Sync {
    /// The gradient of the parameter with this number, complete for this backward pass.
    fn on_gradient(&self, slot: usize, gradient: &Tensor) -> Result<()>;
}

/// A leaf of the computation graph with this value and memory of its own, whose gradient is handed out in the
/// type that the parameter is kept in.
///
/// `slot` is its number among the parameters. Update it in place.
// ANCHOR: leaf
pub(crate) fn leaf(
    value: &Tensor,
    kept: DType,
    slot: usize,
    told: Arc<dyn OnGradient>,
) -> Result<Tensor> {
    let anchor = Var::zeros((), DType::F32, value.device())?;
    apply1(&anchor, Leaf { value: Given::new(value), kept, slot, told })
}

struct Leaf {
    value: Given,
    kept: DType,
    slot: usize,
    told: Arc<dyn OnGradient>,
}

impl CustomOp1 for Leaf {
    fn name(&self) -> &'static str {
        "leaf"
    }

    fn cpu_fwd(&self, _anchor: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.value.take_cpu()
    }

    fn cuda_fwd(&self, _anchor: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.value.take_cuda()
    }

    fn bwd(&self, _anchor: &Tensor, _leaf: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        self.told.on_gradient(self.slot, &gradient.to_dtype(self.kept)?)?;
        Ok(None)
    }
}
// ANCHOR_END: leaf
