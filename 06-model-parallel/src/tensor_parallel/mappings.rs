//! The mappings between one activation on all ranks and a part of the activation on each rank. The backward pass of a
//! mapping is the forward pass of another.
//!
//! | | forward | backward | in Megatron-LM |
//! | --- | --- | --- | --- |
//! | [`copy`] | identity | all-reduce | f, `copy_to_tensor_model_parallel_region` |
//! | [`reduce`] | all-reduce | identity | g, `reduce_from_tensor_model_parallel_region` |
//! | [`scatter`] | this rank's part | all-gather | `scatter_to_tensor_model_parallel_region` |
//! | [`gather`] | all-gather | this rank's part | `gather_from_tensor_model_parallel_region` |
//!
//! All ranks of the group call these functions together, in the same order.

use candle_core::{Result, Tensor};
use ops::backward::record_copy;

use super::group::Group;
use super::sharding::Cut;

// ANCHOR: mappings
/// f: returns `x`, of any shape, as the input of every rank's part of a layer. Backward, sums the gradients of all ranks.
///
/// Sends nothing backward if `x` needs no gradient, as images do not. Backward, fails with the errors of
/// [`Group::all_reduce`].
pub fn copy(x: &Tensor, group: &Group) -> Result<Tensor> {
    if group.ranks() == 1 || !x.track_op() {
        return Ok(x.clone());
    }
    record("copy to all ranks", x, x, group, Group::all_reduce)
}

/// g: sums the tensors of all ranks, of any shape. Backward, returns the gradient as it is. Fails with the errors of
/// [`Group::all_reduce`].
pub fn reduce(x: &Tensor, group: &Group) -> Result<Tensor> {
    if group.ranks() == 1 {
        return Ok(x.clone());
    }
    let identity = |_: &Group, gradient: &Tensor| Ok(gradient.clone());
    record("reduce from all ranks", x, &group.all_reduce(x)?, group, identity)
}

/// Returns this rank's part of a tensor that all ranks have: `[…, n, …]` → `[…, n / k, …]`. Backward, joins the parts'
/// gradients. Fails with the errors of [`Cut::part`]; backward, with those of [`Group::all_gather`].
pub fn scatter(x: &Tensor, cut: Cut, group: &Group) -> Result<Tensor> {
    let part = group.part(x, cut)?;
    if group.ranks() == 1 || !x.track_op() {
        return Ok(part);
    }
    let backward = move |group: &Group, gradient: &Tensor| group.all_gather(gradient, cut);
    record("scatter to all ranks", x, &part, group, backward)
}

/// Joins all ranks' parts: `[…, n / k, …]` → `[…, n, …]`. Backward, returns this rank's part of the gradient, which is
/// the same on all ranks. Fails with the errors of [`Group::all_gather`].
pub fn gather(x: &Tensor, cut: Cut, group: &Group) -> Result<Tensor> {
    if group.ranks() == 1 {
        return Ok(x.clone());
    }
    let backward = move |group: &Group, gradient: &Tensor| group.part(gradient, cut);
    record("gather from all ranks", x, &group.all_gather(x, cut)?, group, backward)
}

/// Records `result`, which all ranks have computed from `x`, with the backward pass that makes the gradient of `x` from
/// the gradient of `result`.
fn record(
    name: &'static str,
    x: &Tensor,
    result: &Tensor,
    group: &Group,
    backward: impl Fn(&Group, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let group = group.clone();
    record_copy(name, result, [x], move |_, gradient| Ok([Some(backward(&group, gradient)?)]))
}
// ANCHOR_END: mappings
