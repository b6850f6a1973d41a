//! A backward pass in two halves: first the gradients of activations, later the gradients of weights.
//!
//! A device of a pipeline waits for the gradient of what it sent, and for nothing else. The first
//! half computes this gradient as soon as possible. The second half computes the gradients of the
//! weights from the tensors that the first half has kept, when the device has no urgent work:
//!
//! ```text
//! y = x · W           first half     dx = dy · Wᵀ     and keeps x and dy
//!                     second half    dW = xᵀ · dy
//! ```
//!
//! Operations that were recorded with [`record_in_halves`](super::record_in_halves) split their
//! work: convolutions and dense layers. Every other operation computes all its gradients in the
//! first half. A batch norm is one of them: its input's gradient contains its parameters' gradients.
//!
//! A gradient that arrives in the first half is passed on at once, unless the same tensor also gets
//! a gradient in the second half. Then all gradients of the tensor wait, in the order of their
//! arrival. Both halves together therefore compute the bits of the whole pass.

use std::collections::HashSet;
use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::tape::Node;
use super::{Accumulators, Gradients, backward_from, graph};

/// The second half of a backward pass, with everything that it needs.
#[derive(Default)]
pub struct SecondHalf {
    steps: Vec<Step>,
    gradients: Accumulators,
}

/// A step of the second half.
enum Step {
    /// Computes the gradients of the weights of a node, from the gradient of its result.
    Weights(Tensor, Arc<Node>, Tensor),
    /// Runs the node of a tensor that weights were computed from.
    Whole(Tensor, Arc<Node>),
    /// Adds a gradient that an operation, given by its name, computed in the first half.
    Add(&'static str, Tensor, Tensor),
}

/// Computes the first half of a backward pass from `result`, where `gradient` is the gradient of a
/// loss by `result`. Returns the gradients of all variables that no weight of the second half was
/// computed from, and the second half.
///
/// If `result` depends on an operation that is not on the tape, the first half computes all
/// gradients, and nothing is left for the second. Fails like [`backward_from`].
pub fn backward_in_halves(result: &Tensor, gradient: &Tensor) -> Result<(Gradients, SecondHalf)> {
    let Some(graph) = graph(result) else {
        return Ok((backward_from(result, gradient)?, SecondHalf::default()));
    };
    let (mut gradients, mut second) = (Accumulators::default(), SecondHalf::default());
    // The tensors whose gradients are complete in the second half only.
    let mut late = HashSet::new();
    gradients.add("backward", result, gradient.clone())?;
    for (tensor, node) in graph {
        let is_late = late.contains(&tensor.id());
        let waits = if is_late {
            0..
        } else if node.in_halves {
            1..
        } else {
            node.inputs.len()..
        };
        for input in node.inputs[waits].iter().filter(|input| input.track_op()) {
            if late.insert(input.id()) {
                second.gradients.take(input, &mut gradients);
            }
        }
        if is_late {
            second.steps.push(Step::Whole(tensor.clone(), node));
            continue;
        }
        let Some(gradient) = gradients.remove(tensor) else { continue };
        let of_inputs = if node.in_halves {
            let gradient = gradient.sum()?;
            let of_inputs = node.gradients(tensor, &gradient, true, false)?;
            second.steps.push(Step::Weights(tensor.clone(), Arc::clone(&node), gradient));
            of_inputs
        } else {
            node.backward(tensor, gradient)?
        };
        for (input, gradient) in node.inputs.iter().zip(of_inputs) {
            match gradient.filter(|_| input.track_op()) {
                Some(gradient) if late.contains(&input.id()) => {
                    second.steps.push(Step::Add(node.name, input.clone(), gradient));
                }
                Some(gradient) => gradients.add(node.name, input, gradient)?,
                None => {}
            }
        }
    }
    Ok((Gradients(gradients.sums()?), second))
}

impl SecondHalf {
    /// Computes the gradients that the first half has left. Fails like [`backward_from`].
    pub fn run(self) -> Result<Gradients> {
        let Self { steps, mut gradients } = self;
        for step in steps {
            let (node, of_inputs) = match step {
                Step::Add(name, tensor, gradient) => {
                    gradients.add(name, &tensor, gradient)?;
                    continue;
                }
                Step::Weights(tensor, node, gradient) => {
                    let of_inputs = node.gradients(&tensor, &gradient, false, true)?;
                    (node, of_inputs)
                }
                Step::Whole(tensor, node) => {
                    let Some(gradient) = gradients.remove(&tensor) else { continue };
                    let of_inputs = node.backward(&tensor, gradient)?;
                    (node, of_inputs)
                }
            };
            for (input, gradient) in node.inputs.iter().zip(of_inputs) {
                if let Some(gradient) = gradient.filter(|_| input.track_op()) {
                    gradients.add(node.name, input, gradient)?;
                }
            }
        }
        Ok(Gradients(gradients.sums()?))
    }

    /// The number of bytes of the gradients that wait for the second half. The activations that the
    /// second half needs are those of the forward pass.
    pub fn bytes(&self) -> usize {
        let waiting = self.steps.iter().filter_map(|step| match step {
            Step::Weights(.., gradient) | Step::Add(.., gradient) => Some(gradient),
            Step::Whole(..) => None,
        });
        waiting.map(|gradient| gradient.elem_count() * gradient.dtype().size_in_bytes()).sum()
    }
}
