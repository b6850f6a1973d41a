//! The bytes that a device holds and sends in training.
//!
//! | | one device | a pipeline's stage | a part of every layer |
//! | --- | --- | --- | --- |
//! | parameters, gradients, optimiser | all | those of its layers | those of its parts |
//! | activations | of the whole batch | of the micro-batches under way | of its parts, and copies of shared ones |

use std::collections::HashMap;

use candle_core::{ModuleT, Result, Storage, Tensor};
use concise_wrapper::Network;
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
    /// The state of the optimiser between two steps: a velocity for each parameter, or nothing.
    pub optimiser: usize,
    /// The most tensors at one time that the computation graph holds for the backward pass. Operations may keep more.
    pub activations: usize,
    /// The activations and gradients that a stage of a pipeline sends in a step.
    pub sent: usize,
}

impl Held {
    /// The bytes of a device that has each of its gradients once.
    pub fn new(weights: &Weights, constants: Momentum, activations: usize) -> Self {
        let parameters = weights.parameter_bytes();
        let optimiser = if constants == Momentum::default() { 0 } else { parameters };
        Self { parameters, gradients: parameters, optimiser, activations, sent: 0 }
    }

    /// The sum of all bytes that the device holds.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.optimiser + self.activations
    }
}

/// The bytes that a forward pass of `input` keeps for the backward pass of a network in training.
///
/// Batch norms see the input, so pass a replica. Fails with the errors of the layers.
pub fn activations_of<M: ModuleT>(network: &Network<M>, input: &Tensor) -> Result<usize> {
    let result = network.forward_training(input)?;
    Ok(activations(&result, input, network.weights()))
}

/// The bytes of all tensors that a result was computed from and that its backward pass keeps.
///
/// Tensors that share memory count once, and the weights do not count. Their rounded copies count when layers compute in
/// bf16. An operation may keep more than its operands and its result, which does not count either.
pub fn activations(result: &Tensor, input: &Tensor, weights: &Weights) -> usize {
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

/// The address of a tensor's storage, equal for tensors that share memory.
fn address(tensor: &Tensor) -> *const Storage {
    let (storage, _) = tensor.storage_and_layout();
    &raw const *storage
}
