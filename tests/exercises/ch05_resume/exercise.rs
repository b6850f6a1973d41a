//! Chapter 5, `book/src/ch05c-processes.md`: going on in the middle of an epoch.
//!
//! Check your answer: `cargo course check ch05_resume`

use candle_core::{Result, Tensor};
use exercises::training::{Setup, Training};

/// What is kept of a training that ends early.
///
/// It has memory of its own: when the training goes on after it was saved, that does not change it.
pub struct Checkpoint {
    /// Values by name.
    weights: Vec<(String, Tensor)>,
    // TODO: weights are not all that the next step depends on. Save the rest, and put it back.
}

/// A checkpoint of a training between two steps.
///
/// `tests/exercises/src/training.rs` has [`Training`] with its fields, and the loop, [`Training::step`]. `rest`,
/// the batches that are left of the epoch, cannot be copied; [`Setup::rest_of_epoch`] makes it anew. When an epoch's
/// batches are all done, it is still under way: the next step adds its loss to `losses`, and begins another.
///
/// Fails when a tensor cannot be copied.
pub fn save(training: &Training) -> Result<Checkpoint> {
    Ok(Checkpoint { weights: training.network.weights().snapshot()? })
}

/// A training that goes on where the checkpoint was saved, with the setup that it had there.
///
/// From there on it does what the first one would have done, to the last bit: the same batches with the same
/// learning rates, the same weights after each step, and in the end the same `losses`. That holds
///
/// - after any number of steps: none (its weights may be from elsewhere), some of the warm-up, part of an epoch,
///   a whole one, all;
/// - if it is saved and resumed again, even after every step;
/// - if a checkpoint is used more than once.
///
/// No step is made again for that.
///
/// Fails when a tensor does not fit the network.
pub fn resume(setup: &Setup, checkpoint: &Checkpoint) -> Result<Training> {
    let training = setup.begin()?;
    training.network.weights().set(&checkpoint.weights)?;
    Ok(training)
}
