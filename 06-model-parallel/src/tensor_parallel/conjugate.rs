//! Where activations go from one rank to all, and from all to one.
//!
//! Each is an operation with a forward and a backward, and they come in pairs: the backward of one is the
//! forward of the other.
//!
//! | | forward | backward | in Megatron-LM |
//! | --- | --- | --- | --- |
//! | [`copy`] | identity | all-reduce | f, `copy_to_tensor_model_parallel_region` |
//! | [`reduce`] | all-reduce | identity | g, `reduce_from_tensor_model_parallel_region` |
//! | [`scatter`] | this rank's part | all-gather | `scatter_to_tensor_model_parallel_region` |
//! | [`gather`] | all-gather | this rank's part | `gather_from_tensor_model_parallel_region` |
//!
//! Why [`copy`] adds up backward: k ranks use the same x, each for a part of the result, so each finds a part
//! of the gradient of x. On one device the chain rule adds up what comes back from every use of x; here the
//! uses are on k ranks. Why [`reduce`] does *not* add up backward: every rank has the same y, and computes the
//! same loss from it. These are k copies of one loss and not k losses, so the gradient of y, which each rank
//! has, is complete.
//!
//! ```text
//!             ┌─ x·A₀ ─┐                       dx ←┬─ dh₀·A₀ᵀ ←┬─ dy
//! x ── copy ──┤        ├── reduce ── y             │ +         │      the same dy, twice,
//!             └─ x·A₁ ─┘                           └─ dh₁·A₁ᵀ ←┘      not 2·dy
//! ```
//!
//! All ranks of the group call these together, in the same order.

use candle_core::{Result, Tensor};
use ops::backward::record_copy;

use super::cut::Cut;
use super::group::Group;

/// f: hands every rank's part of a layer the same input; any shape, unchanged. Backward, the gradients of all
/// ranks are added up.
///
/// Nothing is sent backward if nobody wants a gradient of `x`, as with images.
///
/// # Errors
///
/// When memory is short; backward, those of [`Group::all_reduce`].
pub fn copy(x: &Tensor, group: &Group) -> Result<Tensor> {
    // Where no gradient comes back, the operation would only make a copy.
    if group.ranks() == 1 || !x.track_op() {
        return Ok(x.clone());
    }
    record(x, x, Rule::AllReduce, group)
}

/// g: the sum of all ranks' tensors, any shape, on every rank. Backward, the gradient is passed on as it is.
///
/// # Errors
///
/// Those of [`Group::all_reduce`].
pub fn reduce(x: &Tensor, group: &Group) -> Result<Tensor> {
    if group.ranks() == 1 {
        return Ok(x.clone());
    }
    record(x, &group.all_reduce(x)?, Rule::Identity, group)
}

/// This rank's part of what all ranks have: `[…, n, …]` → `[…, n / k, …]`. Backward, the parts' gradients are
/// put together.
///
/// # Errors
///
/// Those of [`Cut::part`]; backward, those of [`Group::all_gather`].
pub fn scatter(x: &Tensor, cut: Cut, group: &Group) -> Result<Tensor> {
    let part = group.part(x, cut)?;
    if group.ranks() == 1 || !x.track_op() {
        return Ok(part);
    }
    record(x, &part, Rule::AllGather(cut), group)
}

/// All ranks' parts put together: `[…, n / k, …]` → `[…, n, …]`. Backward, a rank takes its part of the
/// gradient, which has to be the same on all ranks.
///
/// # Errors
///
/// Those of [`Group::all_gather`].
pub fn gather(x: &Tensor, cut: Cut, group: &Group) -> Result<Tensor> {
    if group.ranks() == 1 {
        return Ok(x.clone());
    }
    record(x, &group.all_gather(x, cut)?, Rule::Part(cut), group)
}

// ANCHOR: backward
/// Records a result that was computed together with the other ranks.
fn record(x: &Tensor, result: &Tensor, rule: Rule, group: &Group) -> Result<Tensor> {
    let group = group.clone();
    record_copy(rule.name(), result, [x], move |_, gradient| {
        Ok([Some(match rule {
            Rule::AllReduce => group.all_reduce(gradient)?,
            Rule::Identity => gradient.clone(),
            Rule::AllGather(cut) => group.all_gather(gradient, cut)?,
            Rule::Part(cut) => group.part(gradient, cut)?,
        })])
    })
}
// ANCHOR_END: backward

/// How the gradient of the result becomes the gradient of the input.
enum Rule {
    AllReduce,
    Identity,
    AllGather(Cut),
    Part(Cut),
}

impl Rule {
    /// The name of the operation with this backward pass.
    fn name(&self) -> &'static str {
        match self {
            Self::AllReduce => "copy to all ranks",
            Self::Identity => "reduce from all ranks",
            Self::AllGather(_) => "scatter to all ranks",
            Self::Part(_) => "gather from all ranks",
        }
    }
}
