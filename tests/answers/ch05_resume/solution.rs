//! The checkpoint has all that a step changes. What depends on setup and position alone is made anew.

use candle_core::{Result, Tensor};
use exercises::training::{Setup, Training};
use harness::records::BatchSums;

/// What is kept of a training that ends early.
pub struct Checkpoint {
    /// Values by name.
    weights: Vec<(String, Tensor)>,
    /// By the names of their parameters.
    velocities: Vec<(String, Tensor)>,
    steps: usize,
    epoch: usize,
    batches: usize,
    sums: BatchSums,
    losses: Vec<f64>,
}

pub fn save(training: &Training) -> Result<Checkpoint> {
    let Training { network, sgd, steps, epoch, batches, sums, losses, .. } = training;
    // The optimizer writes into its velocities.
    let copied = |(name, velocity): (String, Tensor)| Ok((name, velocity.copy()?));
    let velocities = sgd.state(network.weights())?.into_iter().map(copied);
    Ok(Checkpoint {
        weights: network.weights().snapshot()?,
        velocities: velocities.collect::<Result<_>>()?,
        steps: *steps,
        epoch: *epoch,
        batches: *batches,
        sums: *sums,
        losses: losses.clone(),
    })
}

/// A training that goes on where the checkpoint was saved.
pub fn resume(setup: &Setup, checkpoint: &Checkpoint) -> Result<Training> {
    let Checkpoint { weights, velocities, steps, epoch, batches, sums, losses } = checkpoint;
    let mut training = setup.begin()?;
    training.network.weights().set(weights)?;
    training.sgd.restore(training.network.weights(), velocities)?;
    Ok(Training {
        steps: *steps,
        epoch: *epoch,
        batches: *batches,
        rest: setup.rest_of_epoch(*epoch, *batches),
        sums: *sums,
        losses: losses.clone(),
        ..training
    })
}

exercises::check!(ch05_resume, Answer::new(save, resume), run);
