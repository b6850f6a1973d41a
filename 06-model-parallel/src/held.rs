//! The bytes that a device holds and sends in training, and the whole model from its parts on several ranks.
//!
//! | | one device | a pipeline's stage | a part of every layer |
//! | --- | --- | --- | --- |
//! | parameters, gradients, optimiser | all | those of its layers | those of its parts |
//! | activations | of the whole batch | of the micro-batches under way | of its parts, and copies of shared ones |

use std::collections::HashMap;

use candle_core::{DType, Device, ModuleT, Result as TensorResult, Shape, Storage, Tensor};
use concise_wrapper::optimizer::Momentum;
use concise_wrapper::weights::{Snapshot, Weights};
use concise_wrapper::{Ddp, Error, Model, Network, text};
use params_and_allreduce::communicator::{self, Communicator};
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
    /// The sum of all bytes that the device holds.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.optimiser + self.activations
    }

    /// The bytes of a device that has each of its gradients once.
    pub fn new(weights: &Weights, constants: Momentum, activations: usize) -> Self {
        let parameters = weights.parameter_bytes();
        let optimiser = if constants == Momentum::default() { 0 } else { parameters };
        Self { parameters, gradients: parameters, optimiser, activations, sent: 0 }
    }
}

/// The bytes that a forward pass of `input` keeps for the backward pass of a network in training.
///
/// Batch norms see the input, so pass a replica.
///
/// # Errors
///
/// The errors of the layers.
pub fn activations_of<M: ModuleT>(network: &Network<M>, input: &Tensor) -> TensorResult<usize> {
    let result = network.forward_training(input)?;
    Ok(activations(&result, input, network.weights()))
}

/// The bytes of all tensors that a result was computed from and that its backward pass keeps.
///
/// Tensors that share memory count once, and the weights do not count. Their rounded copies count when layers compute in
/// bf16. An operation may keep more than its operands and its result, which does not count either.
pub fn activations(result: &Tensor, input: &Tensor, weights: &Weights) -> usize {
    let mut sizes = HashMap::new();
    // Apart from the input, variables are the anchors of gradient hooks, a number each.
    let computed = result.sorted_nodes().into_iter().filter(|tensor| !tensor.is_variable());
    for tensor in computed.chain([input]) {
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        let size = sizes.entry(address(tensor)).or_insert(bytes);
        *size = bytes.max(*size);
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

/// A model of which a rank may hold a part only.
pub trait Whole: Model {
    /// Joins the values of all parts. `mine` are this rank's values, each named like one of its
    /// [`weights`](Model::weights).
    ///
    /// Returns the values of the whole model on the first rank of each replica, and `None` on the others. All ranks call
    /// this together.
    ///
    /// # Errors
    ///
    /// When another rank stops or stalls.
    fn whole(&self, mine: Snapshot) -> Result<Option<Snapshot>, Error>;
}

impl<M: ModuleT> Whole for Network<M> {
    fn whole(&self, mine: Snapshot) -> Result<Option<Snapshot>, Error> {
        Ok(Some(mine))
    }
}

impl<M: ModuleT> Whole for Ddp<M> {
    fn whole(&self, mine: Snapshot) -> Result<Option<Snapshot>, Error> {
        Ok(Some(mine))
    }
}

/// Gathers the tensors of all ranks on rank 0, in rank order, and returns `None` on the others. All ranks call this
/// together. No tensor may be empty.
pub(crate) fn gathered(
    line: &(impl Communicator + ?Sized),
    mine: Snapshot,
) -> Result<Option<Snapshot>, communicator::Error> {
    // Name, shape and type of each tensor, before the tensors themselves.
    let announced = |(name, tensor): &(String, Tensor)| {
        (name.clone(), tensor.dims().to_vec(), tensor.dtype().as_str().to_owned())
    };
    let announced: Vec<(String, Vec<usize>, String)> = mine.iter().map(announced).collect();
    let all = text::values_gathered(line, &announced)?;
    if line.rank() > 0 {
        for (_, tensor) in &mine {
            line.send(0, &tensor.to_device(line.device())?)?;
        }
        return Ok(None);
    }
    let mut whole = mine;
    for (rank, of_rank) in all.into_iter().enumerate().skip(1) {
        for (name, dims, dtype) in of_rank {
            let dtype = dtype.parse::<DType>().map_err(candle_core::Error::wrap)?;
            let tensor = line.recv(rank, &Shape::from(dims), dtype)?;
            whole.push((name, tensor.to_device(&Device::Cpu)?));
        }
    }
    Ok(Some(whole))
}
