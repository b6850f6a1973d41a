//! A backward pass in two halves: first the gradients of activations, later the gradients of weights.
//!
//! The stage before in a pipeline waits for the gradient of its output only, which the first half computes. The second half
//! computes the gradients of the weights, when the device has no urgent work:
//!
//! ```text
//! y = x · W           first half     dx = dy · Wᵀ     and keeps x and dy
//!                     second half    dW = xᵀ · dy
//! ```
//!
//! Convolutions and dense layers split their work: [`record_in_halves`](super::record_in_halves). Every other operation
//! computes all its gradients in the first half. A gradient of the first half is passed on at once, unless the same tensor
//! also gets one in the second half. Then all wait, in the order of their arrival: both halves have the bits of the whole.

use std::collections::HashSet;
use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::tape::{Kind, Node, Wanted};
use super::{Accumulator, Accumulators, Gradients, backward_from, graph};
use crate::size_in_bytes;

/// The second half of a backward pass, with everything that it needs.
#[derive(Default)]
pub struct SecondHalf {
    steps: Vec<Step>,
    gradients: Accumulators,
}

enum Step {
    /// Runs a node for its result. With a gradient it computes the weights' gradients only.
    Run(Tensor, Arc<Node>, Option<Tensor>),
    /// Adds a gradient that an operation, given by its name, computed in the first half.
    Add(&'static str, Tensor, Tensor),
}

/// Computes the first half of a backward pass from `result`, where `gradient` is the gradient of a loss by `result`. Returns
/// the gradients of all variables that no weight of the second half was computed from, and the second half: nothing, if
/// `result` depends on an operation that is not on the tape. Fails like [`backward_from`].
pub fn backward_in_halves(result: &Tensor, gradient: &Tensor) -> Result<(Gradients, SecondHalf)> {
    let Some(graph) = graph(result) else {
        return Ok((backward_from(result, gradient)?, SecondHalf::default()));
    };
    let (mut gradients, mut second) = (Accumulators::default(), SecondHalf::default());
    // The tensors whose gradients are complete in the second half only.
    let mut late = HashSet::new();
    gradients.add("backward", result, gradient.clone())?;
    for (tensor, node) in graph {
        let Some(node) = node else { continue };
        let in_halves = node.kind == Kind::InHalves;
        let is_late = late.contains(&tensor.id());
        let waiting = match (is_late, in_halves) {
            (true, _) => node.inputs.as_slice(),
            (false, true) => &node.inputs[1..],
            (false, false) => &[],
        };
        for input in waiting.iter().filter(|input| input.track_op()) {
            if late.insert(input.id()) {
                let earlier = gradients.remove(input).map(|earlier| (input.id(), earlier));
                second.gradients.0.extend(earlier);
            }
        }
        if is_late {
            second.steps.push(Step::Run(tensor.clone(), node, None));
            continue;
        }
        let Some(mut gradient) = gradients.remove(tensor) else { continue };
        if in_halves {
            let sum = gradient.sum()?;
            second.steps.push(Step::Run(tensor.clone(), Arc::clone(&node), Some(sum.clone())));
            gradient = Accumulator::One(sum);
        }
        let wanted = Wanted { input: true, weights: !in_halves };
        for (input, gradient) in node.inputs.iter().zip(node.backward(tensor, gradient, wanted)?) {
            let Some(gradient) = gradient.filter(|_| input.track_op()) else { continue };
            if late.contains(&input.id()) {
                second.steps.push(Step::Add(node.name, input.clone(), gradient));
            } else {
                gradients.add(node.name, input, gradient)?;
            }
        }
    }
    Ok((gradients.sums()?, second))
}

impl SecondHalf {
    /// Computes the gradients that the first half has left. Fails like [`backward_from`].
    pub fn run(self) -> Result<Gradients> {
        let Self { steps, mut gradients } = self;
        for step in steps {
            let (tensor, node, gradient) = match step {
                Step::Run(tensor, node, gradient) => (tensor, node, gradient),
                Step::Add(name, tensor, gradient) => {
                    gradients.add(name, &tensor, gradient)?;
                    continue;
                }
            };
            let wanted = Wanted { input: gradient.is_none(), weights: true };
            let gradient = gradient.map(Accumulator::One).or_else(|| gradients.remove(&tensor));
            let Some(gradient) = gradient else { continue };
            gradients.add_all(&node, node.backward(&tensor, gradient, wanted)?)?;
        }
        gradients.sums()
    }

    /// The bytes of the gradients that wait for the second half, without the activations of the forward pass.
    pub fn bytes(&self) -> usize {
        let waiting = self.steps.iter().filter_map(|step| match step {
            Step::Run(.., gradient) => gradient.as_ref(),
            Step::Add(.., gradient) => Some(gradient),
        });
        waiting.map(size_in_bytes).sum()
    }
}
