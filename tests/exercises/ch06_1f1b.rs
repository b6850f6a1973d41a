//! Chapter 6, `book/src/ch06-model-parallel.md`: what a stage of a pipeline does, in the order of 1F1B.
//!
//! Check your answer: `cargo course check ch06_1f1b`

use model_parallel::Action::{
    self, Backward, Forward, RecvActivation, RecvGradient, SendActivation, SendGradient, Update,
};

/// Everything that a stage does in one step of training, from the first micro-batch to the update.
///
/// The model is cut into p stages, `stage` is one of them, counted from 0, and the batch is cut into m
/// micro-batches. 1F1B with three stages and four micro-batches; a column is a pass, and `··` a device that waits:
///
/// ```text
/// stage 0   F0  F1  F2  ··  ··  B0  F3  B1  ··  B2  ··  B3
/// stage 1   ··  F0  F1  ··  B0  F2  B1  F3  B2  ··  B3  ··
/// stage 2   ··  ··  F0  B0  F1  B1  F2  B2  F3  B3  ··  ··
/// ```
///
/// - Micro-batches go forward in their order, and backward in the same order.
/// - A stage goes forward until work has reached the last stage, then forward once and backward once in turn, and at
///   the end backward until all are back.
/// - Stage r keeps the activations of at most p − r micro-batches: the micro-batches that have gone forward there, and not yet
///   backward.
/// - m may be smaller than p. Both are at least 1.
///
/// Stages also send messages:
///
/// | action | what it does | who does it |
/// | --- | --- | --- |
/// | `RecvActivation(i)` | waits for the activation of micro-batch i | all but the first stage |
/// | `Forward(i)` | computes with it | all |
/// | `SendActivation(i)` | sends the result to the next stage | all but the last |
/// | `RecvGradient(i)` | waits for the gradient of that result | all but the last |
/// | `Backward(i)` | computes with it | all |
/// | `SendGradient(i)` | sends the gradient of its input to the stage before | all but the first |
/// | `Update` | changes the weights, once, by the gradients of all micro-batches | all |
///
/// A stage does its actions in order. The update comes last. Between two neighbours there is a channel for activations and a
/// channel for gradients. A channel holds one message: the sender of the next message waits until the first is received. In
/// chapter 2's ring, in contrast, a send waits until its own message is received. Two mistakes are possible. Stages may wait for each other in a circle.
/// Or all stages end, but later than in the drawing, because a stage sends too late or waits for a message before the pass that
/// needs it.
///
/// The check counts stages, micro-batches and instructions from 0. Do not use stage 6's `Kind::OneFOneB` and its order.
pub fn one_f_one_b(stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
    // TODO: forward until the last stage has work, then both in turn, then backward; with messages, and an update.
    todo!("what the stage does")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch06_1f1b, one_f_one_b, run);
