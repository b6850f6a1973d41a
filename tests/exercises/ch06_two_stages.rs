//! Chapter 6, `book/src/ch06-model-parallel.md`: the forward and the backward pass of one stage.
//!
//! Check your answer: `cargo course check ch06_two_stages`

use candle_core::{Shape, Tensor, Var};
use concise_wrapper::Network;
use datasets::Batch;
use exercises::stages::Passed;
use model_parallel::layers::Stage;
use ops::backward::backward_from;
use ops::cross_entropy;
use params_and_allreduce::communicator::{Communicator, Error};

/// The forward pass of this rank's stage.
///
/// The model is cut into stages, one for each rank, in the order of the ranks. All ranks call this together, with the same
/// `batch`. The activation of a stage goes to the rank of the next stage:
///
/// ```text
/// first stage              another stage            last stage
/// images → layers → h      h → layers → h'          h' → layers → logits → loss
///                   └─────→             └──────────→
/// ```
///
/// | name | what |
/// | --- | --- |
/// | `layers` | the layers of this stage: `layers.forward_training(&input)` computes them |
/// | `arrives` | the shape of the activation that arrives; its element type is `layers.dtype()`. The first stage receives none |
/// | `batch` | `images`, the input of the first stage, and `labels`, for the loss on the last stage |
/// | result | `Passed { input, result }`: the input as a variable, if it came from another rank, and the result of this stage: the activation, or on the last stage the loss |
///
/// The loss is `cross_entropy(&logits, &labels)`, the sum over the samples. With a single rank, the only stage is the first and
/// the last. A stage sends one message, and the last stage none.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn forward(
    rank: &impl Communicator,
    layers: &Network<Stage>,
    arrives: &Shape,
    batch: &Batch,
) -> Result<Passed, Error> {
    // TODO: both passes. What does the stage need to keep for its backward pass?
    todo!("the forward pass of a stage")
}

/// The backward pass of this rank's stage: the gradients of its parameters.
///
/// All ranks call this together, each with the result of its forward pass. A stage sends one message, and the first stage none.
/// Several forward passes may come first; their backward passes then come in the same order.
///
/// The gradients are those of one device with all layers, in the order of `layers.weights().parameters`.
/// `backward_from(&tensor, &gradient)` goes back from any tensor, if `gradient` is the derivative of the loss by this tensor. It
/// returns what it has found: `found.get(&variable)` is the gradient of one variable, and `layers.parameter_gradients(&found)`
/// selects those of the parameters.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn backward(
    rank: &impl Communicator,
    layers: &Network<Stage>,
    passed: &Passed,
) -> Result<Vec<Tensor>, Error> {
    todo!("the backward pass of a stage")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch06_two_stages, Answer { forward, backward }, run);
