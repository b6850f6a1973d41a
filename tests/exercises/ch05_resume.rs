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
    // TODO: weights are not all that the next step depends on. Save the rest, and put it back.
}

/// A checkpoint of a training between two steps.
///
/// `tests/exercises/support/training.rs` has [`Training`] with its fields, and the loop, [`Training::step`]. The field `rest`, the
/// batches that are left of the epoch, cannot be copied; [`Setup::rest_of_epoch`] makes it anew. An epoch whose batches are all
/// done has not ended yet: the next step adds the epoch's loss to `losses`, and begins another epoch.
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
/// - after any number of steps: none (its weights may be from elsewhere), some of the warm-up, part of an epoch,
///   a whole one, all;
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
exercises::check!(ch05_resume, Answer::new(save, resume));
