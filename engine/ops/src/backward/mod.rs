//! The backward pass: gradients of a loss by all variables.
//!
//! candle's own backward pass starts every gradient as zeros and adds each incoming gradient to them. Nearly all tensors are
//! used once and have a single incoming gradient, and this module omits their additions.
//!
//! candle does not expose the operation and the inputs that computed a tensor. Therefore the course's operations [`record`]
//! their results on a tape: a node with the inputs and the backward pass of the operation. If a loss depends on any other
//! operation, candle's backward pass computes all gradients: the same ones, except for the sign of a zero.
//!
//! A forward pass without gradients runs within [`no_grad()`]. [`backward_in_halves`] leaves the weights' gradients for later.

mod halves;
mod tape;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::{Result, Tensor, TensorId, bail};

pub use halves::{SecondHalf, backward_in_halves};
pub(crate) use tape::{Kind, record_node};
pub use tape::{
    Wanted, no_grad, record, record_copy, record_in_halves, record_parameter, record_views,
};

use crate::{size_in_bytes, sum};
use tape::{Hook, Node, node_of, with_hook};

/// The gradients of variables that a backward pass has computed.
#[derive(Debug)]
pub struct Gradients(HashMap<TensorId, Tensor>);

impl Gradients {
    /// Returns the gradient of a variable, of the variable's shape and type. Returns `None` if the
    /// differentiated result does not depend on the variable.
    pub fn get(&self, variable: &Tensor) -> Option<&Tensor> {
        self.0.get(&variable.id())
    }

    /// Takes the gradient of a variable out, if there is one.
    pub fn remove(&mut self, variable: &Tensor) -> Option<Tensor> {
        self.0.remove(&variable.id())
    }

    /// Adds the gradients of the second half of a [backward pass in halves](backward_in_halves).
    pub fn extend(&mut self, second: Self) {
        self.0.extend(second.0);
    }

    /// Returns the size of all gradients in bytes.
    pub fn bytes(&self) -> usize {
        self.0.values().map(size_in_bytes).sum()
    }
}

/// Computes the gradients of a loss, which is a scalar, by all variables that it depends on. Fails
/// when an operation has no backward pass, or its backward pass fails.
pub fn backward(loss: &Tensor) -> Result<Gradients> {
    backward_from(loss, &loss.ones_like()?)
}

/// Continues a backward pass from `result`: `gradient` is the gradient of a loss by `result`.
///
/// Returns the gradients of this loss by all variables and [parameters](record_parameter) that
/// `result` depends on. `gradient` has the shape and type of `result`. Fails when shapes or types
/// differ, when an operation has no backward pass, or when its backward pass fails.
pub fn backward_from(result: &Tensor, gradient: &Tensor) -> Result<Gradients> {
    let found = Rc::new(RefCell::new(HashMap::new()));
    let all = Rc::clone(&found);
    backward_with_hook(result, gradient, move |tensor, gradient| {
        all.borrow_mut().insert(tensor.id(), gradient.clone());
        Ok(())
    })?;
    Ok(Gradients(found.take()))
}

// ANCHOR: hook
/// Computes the gradients of [`backward_from`], and gives each to `hook` as soon as it is complete:
/// the gradients of the last layer first. The hook gets a parameter or a variable, and its gradient.
/// If candle computes the gradients, those of variables come at the end.
pub fn backward_with_hook(
    result: &Tensor,
    gradient: &Tensor,
    hook: impl Fn(&Tensor, &Tensor) -> Result<()> + 'static,
) -> Result<()> {
    let Some(graph) = graph(result) else { return by_candle(result, gradient, Rc::new(hook)) };
    let mut gradients = Accumulators::default();
    gradients.add("backward", result, gradient.clone())?;
    for (tensor, node) in graph {
        // The gradient is complete: all tensors computed from this one came earlier in the graph.
        let Some(gradient) = gradients.remove(tensor) else { continue };
        match node {
            Some(node) => {
                gradients.add_all(&node, node.backward(tensor, gradient, Wanted::ALL)?)?;
            }
            None => hook(tensor, &gradient.sum()?)?,
        }
    }
    Ok(())
}
// ANCHOR_END: hook

/// candle's backward pass. It starts from a scalar loss: the derivative of Σ result · gradient by
/// the result is the gradient.
fn by_candle(result: &Tensor, gradient: &Tensor, hook: Rc<Hook>) -> Result<()> {
    // candle copies a tensor's dimensions to the GPU, and a scalar has none: the copy would have
    // size 0. `flatten_all` turns a scalar into a vector.
    let loss = (result * gradient.detach())?.flatten_all()?.sum_all()?;
    let store = with_hook(&hook, || loss.backward())?;
    for variable in result.sorted_nodes().into_iter().filter(|tensor| tensor.is_variable()) {
        if let Some(gradient) = store.get(variable) {
            hook(variable, gradient)?;
        }
    }
    Ok(())
}

/// Whether every tensor between the variables and `result` has a tape node. If so, this module
/// computes the backward pass, and otherwise candle does.
pub fn is_recorded(result: &Tensor) -> bool {
    graph(result).is_some()
}

/// The tensors that a result was computed from, with their tape nodes. Each tensor comes after all
/// tensors that were computed from it. A variable and a parameter have no node here.
type Graph<'a> = Vec<(&'a Tensor, Option<Arc<Node>>)>;

/// Returns the graph of a result, or `None` if a tensor that is no variable has no tape node.
fn graph(result: &Tensor) -> Option<Graph<'_>> {
    let with_node = result.sorted_nodes().into_iter().map(|tensor| match tensor.is_variable() {
        true => Some((tensor, None)),
        false => Some((tensor, Some(node_of(tensor)?).filter(|it| it.kind != Kind::Parameter))),
    });
    with_node.collect()
}

/// The gradient accumulator of a tensor: one gradient, or two gradients that are not added yet. All
/// are contiguous and have the tensor's shape and type.
///
/// The relu at the end of a residual block reads the sum of two gradients to mask it. An accumulator therefore keeps the
/// last two terms apart, and the relu adds and masks them in one pass.
#[derive(Debug)]
pub(crate) enum Accumulator {
    One(Tensor),
    Two([Tensor; 2]),
}

impl Accumulator {
    /// Returns the sum of all gradients, added in the order of their arrival.
    pub(crate) fn sum(self) -> Result<Tensor> {
        match self {
            Self::One(gradient) => Ok(gradient),
            Self::Two([a, b]) => sum(&a, &b),
        }
    }
}

/// The accumulators of all tensors that the backward pass has not reached yet.
#[derive(Default)]
struct Accumulators(HashMap<TensorId, Accumulator>);

impl Accumulators {
    /// Adds a gradient from the operation `by` to a tensor's accumulator. Fails when the gradient's
    /// shape or type differs from the tensor's.
    fn add(&mut self, by: &str, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        if gradient.shape() != tensor.shape() || gradient.dtype() != tensor.dtype() {
            let ((dtype, dims), found) = ((tensor.dtype(), tensor.dims()), gradient.dtype());
            bail!(
                "{by}: a tensor {dtype:?} {dims:?} got a gradient {found:?} {:?}",
                gradient.dims()
            );
        }
        // A gradient is a constant: this module does not differentiate twice.
        let gradient = gradient.detach().contiguous()?;
        let all = match self.remove(tensor) {
            Some(earlier) => Accumulator::Two([earlier.sum()?, gradient]),
            None => Accumulator::One(gradient),
        };
        self.0.insert(tensor.id(), all);
        Ok(())
    }

    /// Adds the gradients of a node's inputs to their accumulators. Data need no gradient.
    fn add_all(&mut self, node: &Node, of_inputs: Vec<Option<Tensor>>) -> Result<()> {
        for (input, gradient) in node.inputs.iter().zip(of_inputs) {
            if let Some(gradient) = gradient.filter(|_| input.track_op()) {
                self.add(node.name, input, gradient)?;
            }
        }
        Ok(())
    }

    /// Removes the accumulator of a tensor, if any gradient has arrived.
    fn remove(&mut self, tensor: &Tensor) -> Option<Accumulator> {
        self.0.remove(&tensor.id())
    }

    fn sums(self) -> Result<Gradients> {
        let sums = self.0.into_iter().map(|(id, accumulator)| Ok((id, accumulator.sum()?)));
        sums.collect::<Result<_>>().map(Gradients)
    }
}
