//! The bytes that a device holds and sends in training.

use std::collections::HashMap;

use candle_core::{Storage, Tensor};
use concise_wrapper::optimizer::Momentum;
use concise_wrapper::weights::Weights;
use ops::size_in_bytes;
use serde::{Deserialize, Serialize};

/// Bytes that a device holds in training, and the bytes that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The parameters.
    pub parameters: usize,
    /// The most gradients at one time.
    pub gradients: usize,
    /// The state of the optimizer between two steps: a velocity for each parameter, or nothing.
    pub optimizer: usize,
    /// The most tensors at one time that the computation graph holds for the backward pass. Operations may keep more.
    pub activations: usize,
    /// The activations and gradients that a stage of a pipeline sends in a step.
    pub sent: usize,
}

impl Held {
    /// The bytes of a device that has each of its gradients once.
    pub fn new(weights: &Weights, constants: Momentum, activations: usize) -> Self {
        let parameters = weights.parameter_bytes();
        let optimizer = if constants == Momentum::default() { 0 } else { parameters };
        Self { parameters, gradients: parameters, optimizer, activations, sent: 0 }
    }

    /// The sum of all bytes that the device holds.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.optimizer + self.activations
    }
}

/// The bytes of all tensors that a result was computed from and that its backward pass keeps.
///
/// Tensors that share memory count once, and the weights do not count. Their rounded copies count when layers compute in
/// bf16. An operation may keep more than its operands and its result, which does not count either.
pub fn activations(result: &Tensor, input: &Tensor, weights: &Weights) -> usize {
    // Equal for tensors that share memory.
    let address = |tensor: &Tensor| -> *const Storage { &raw const *tensor.storage_and_layout().0 };
    let mut sizes = HashMap::new();
    // Apart from the input, variables are the anchors of parameters, a number each.
    let computed = result.sorted_nodes().into_iter().filter(|tensor| !tensor.is_variable());
    for tensor in computed.chain([input]) {
        let size = sizes.entry(address(tensor)).or_insert(0);
        *size = size_in_bytes(tensor).max(*size);
    }
    for parameter in &weights.parameters {
        sizes.remove(&address(&parameter.tensor));
    }
    sizes.values().sum()
}
