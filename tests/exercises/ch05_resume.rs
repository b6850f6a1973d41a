//! Chapter 5, `book/src/ch05c-processes.md`: going on in the middle of an epoch.
//!
//! Check your answer: `cargo course check ch05_resume`

use candle_core::{Result, Tensor};
use exercises::training::{Setup, Training};

/// The saved state of a training.
///
/// A checkpoint has its own memory: later steps of the training do not change the checkpoint.
pub struct Checkpoint {
    /// Values by name.
    weights: Vec<(String, Tensor)>,
    // TODO: the resumed training must make the same steps.
}

/// A checkpoint of a training between two steps.
///
/// | field | what |
/// | --- | --- |
/// | `network` | the network: `network.weights()` has `snapshot()` and `set(&snapshot)` for parameters and buffers |
/// | `sgd` | the optimizer: `state(weights)?` shares its memory, and `restore(weights, &state)?` restores a copy |
/// | `steps` | steps since the beginning, which decide the learning rate |
/// | `epoch`, `batches` | the epoch, from 1, and its finished batches |
/// | `rest` | an iterator over the batches that are left of this epoch: `setup.rest_of_epoch(epoch, done)` makes one |
/// | `sums` | the sums over the finished batches of this epoch |
/// | `losses` | the mean loss of each finished epoch |
///
/// The loop is [`Training::step`], in `tests/exercises/support/training.rs`.
///
/// Fails when a tensor cannot be copied.
pub fn save(training: &Training) -> Result<Checkpoint> {
    Ok(Checkpoint { weights: training.network.weights().snapshot()? })
}

/// A training that continues from a checkpoint, with the same setup.
///
/// The resumed training has the state of the first training, to the last bit. It makes the same steps: the same batches with
/// the same learning rates, the same weights after each step, and at the end the same `losses`. This holds
///
/// - after any number of steps, from none to all;
/// - if it is saved and resumed again, even after every step;
/// - if a checkpoint is used more than once.
///
/// `resume` repeats no step.
///
/// Fails when a tensor does not fit the network.
pub fn resume(setup: &Setup, checkpoint: &Checkpoint) -> Result<Training> {
    let training = setup.begin()?;
    training.network.weights().set(&checkpoint.weights)?;
    Ok(training)
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch05_resume, Answer::new(save, resume), run);
