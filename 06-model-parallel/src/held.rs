//! What a device holds in training, in bytes.
//!
//! | | one device | a pipeline's stage | a part of every layer |
//! | --- | --- | --- | --- |
//! | parameters, gradients, optimiser | all | its layers' | its parts |
//! | activations | of the whole batch | of the micro-batches that are alive | its parts, and what all have |

use std::collections::HashMap;

use candle_core::{ModuleT, Result, Storage, Tensor};
use concise_wrapper::Network;
use concise_wrapper::optimizer::Momentum;
use concise_wrapper::weights::Weights;
use serde::{Deserialize, Serialize};

/// Bytes that a device holds in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// What is trained.
    pub parameters: usize,
    /// The most of their gradients at one time.
    pub gradients: usize,
    /// What the optimiser keeps from step to step: a velocity for each parameter, or nothing.
    pub optimiser: usize,
    /// The most that is kept at one time for the backward pass: tensors that the computation graph holds,
    /// without what operations keep to themselves.
    pub activations: usize,
}

impl Held {
    /// Everything together.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.optimiser + self.activations
    }

    /// What a device holds that has each of its gradients once.
    pub fn new(weights: &Weights, constants: Momentum, activations: usize) -> Self {
        let parameters = weights.parameter_bytes();
        let optimiser = if constants == Momentum::default() { 0 } else { parameters };
        Self { parameters, gradients: parameters, optimiser, activations }
    }
}

/// The bytes that a forward pass of `input` keeps: of a network in training, on a batch as it lies on the device.
///
/// Batch norms see the batch: ask a replica.
///
/// # Errors
///
/// Those of the layers.
pub fn activations_of<M: ModuleT>(network: &Network<M>, input: &Tensor) -> Result<usize> {
    let result = network.forward_training(input)?;
    Ok(activations(&result, input, network.weights()))
}

/// The bytes of all tensors that a result was computed from and that its backward pass holds on to.
///
/// Tensors that share memory count once, and the weights not at all: they are there anyway. (Their rounded copies, where
/// layers compute in bf16, do count.) What an operation keeps to itself, beside its operands and its result, is not seen.
pub fn activations(result: &Tensor, input: &Tensor, weights: &Weights) -> usize {
    let mut sizes = HashMap::new();
    // Apart from the input, variables are what the weights' gradients hang on, a number each.
    let computed = result.sorted_nodes().into_iter().filter(|tensor| !tensor.is_variable());
    for tensor in computed.chain([input]) {
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        let size = sizes.entry(place(tensor)).or_insert(bytes);
        *size = bytes.max(*size);
    }
    for parameter in &weights.parameters {
        sizes.remove(&place(&parameter.tensor));
    }
    sizes.values().sum()
}

/// Where a tensor's memory is: equal for those that share it.
fn place(tensor: &Tensor) -> *const Storage {
    let (storage, _) = tensor.storage_and_layout();
    &raw const *storage
}
