//! The backward pass.
//!
//! candle has one, and it is right. But every gradient begins there as zeros, to which is added what comes in: for
//! each tensor between two operations, memory is written once, and then two tensors are read and a third is written.
//! Nearly all tensors are used once, so that nearly all of it is work for nothing.
//!
//! ```text
//!                      x ──→ conv ──→ y ──→ batch norm ──→ …
//! candle       dy = 0 + dy'                  what came in, added to zeros
//! this one     dy = dy'                      what came in; the next ones, if there are any, are added to it
//! ```
//!
//! candle does not tell what a tensor was computed from. So the course's operations remember it: they are applied by
//! [`apply1`], [`apply2`] and [`apply3`], and the sum of a short cut so that it takes two gradients at once. Where another
//! operation is among those that a loss was computed by, candle makes the whole pass. Either way the gradients are the
//! same, but for the sign of a zero.
//!
//! A forward pass that nobody differentiates is made within [`untracked()`], and nothing of it is kept.

mod arrived;
mod given;
mod node;
#[cfg(test)]
mod tests;
mod untracked;

use std::collections::HashMap;

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId, bail};

pub use given::Given;
pub(crate) use node::apply2_by_two;
pub use node::{apply1, apply2, apply3};
pub use untracked::untracked;

use arrived::Arrived;
use node::{Node, remembered};

/// The gradients that a backward pass found, of variables.
#[derive(Debug)]
pub struct Gradients(HashMap<TensorId, Tensor>);

impl Gradients {
    /// The gradient of a variable, of its shape and type; `None` if what was differentiated does not depend on it.
    pub fn get(&self, variable: &Tensor) -> Option<&Tensor> {
        self.0.get(&variable.id())
    }
}

/// The gradients that have arrived so far, of tensors whose own turn has not come.
#[derive(Default)]
struct Underway(HashMap<TensorId, Arrived>);

impl Underway {
    /// Adds to a tensor's gradient what an operation has found.
    fn add(&mut self, by: &str, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        if gradient.shape() != tensor.shape() || gradient.dtype() != tensor.dtype() {
            bail!(
                "{by}: a tensor {:?} {:?} got a gradient {:?} {:?}",
                tensor.dtype(),
                tensor.dims(),
                gradient.dtype(),
                gradient.dims()
            );
        }
        // Gradients have no gradients.
        let gradient = gradient.detach().contiguous()?;
        let all = match self.0.remove(&tensor.id()) {
            Some(earlier) => earlier.and(gradient)?,
            None => Arrived::One(gradient),
        };
        self.0.insert(tensor.id(), all);
        Ok(())
    }

    /// What is left when every operation had its turn.
    fn of_variables(self) -> Result<Gradients> {
        let sums = self.0.into_iter().map(|(id, arrived)| Ok((id, arrived.sum()?)));
        Ok(Gradients(sums.collect::<Result<_>>()?))
    }
}

impl From<GradStore> for Gradients {
    fn from(store: GradStore) -> Self {
        let gradient = |&id| store.get_id(id).map(|gradient| (id, gradient.clone()));
        Self(store.get_ids().filter_map(gradient).collect())
    }
}

/// The gradients of a loss, a scalar, by all variables that it depends on.
///
/// # Errors
///
/// When an operation has no backward pass, or it fails.
pub fn backward(loss: &Tensor) -> Result<Gradients> {
    backward_from(loss, &loss.ones_like()?)
}

/// The gradients of something whose gradient by `result` is `gradient`, by all variables that `result` depends on;
/// `gradient` has the shape and type of `result`.
///
/// # Errors
///
/// When the two do not fit, an operation has no backward pass, or it fails.
pub fn backward_from(result: &Tensor, gradient: &Tensor) -> Result<Gradients> {
    match graph(result) {
        Some(graph) => walk(graph, result, gradient),
        // A loss with that gradient: the derivative of Σ result · gradient by the result is the gradient. (It is
        // flattened because a GPU would be told of the dimensions of a scalar, in memory of size 0.)
        None => {
            let loss = (result * gradient.detach())?.flatten_all()?.sum_all()?;
            Ok(loss.backward()?.into())
        }
    }
}

/// Whether everything that a result was computed from, since the variables, is remembered: then its backward pass is
/// this module's, and else candle's.
pub fn is_remembered(result: &Tensor) -> bool {
    graph(result).is_some()
}

/// What a result was computed from, each tensor after all that were computed from it; `None` if one is not remembered.
fn graph(result: &Tensor) -> Option<Vec<(&Tensor, Node)>> {
    let computed = result.sorted_nodes().into_iter().filter(|tensor| !tensor.is_variable());
    computed.map(|tensor| Some((tensor, remembered(tensor)?))).collect()
}

// ANCHOR: walk
fn walk(graph: Vec<(&Tensor, Node)>, result: &Tensor, gradient: &Tensor) -> Result<Gradients> {
    let mut gradients = Underway::default();
    gradients.add("backward", result, gradient.clone())?;
    for (tensor, node) in graph {
        // Complete, as all that was computed from this tensor came before it.
        let Some(gradient) = gradients.0.remove(&tensor.id()) else { continue };
        for (input, gradient) in node.inputs().iter().zip(node.backward(tensor, gradient)?) {
            if let Some(gradient) = gradient.filter(|_| input.track_op()) {
                gradients.add(node.name(), input, gradient)?;
            }
        }
    }
    gradients.of_variables()
}
// ANCHOR_END: walk
