// expect: an epoch whose batches are all done is pushed to `losses` by the *next* step

use candle_core::{Result, Tensor};
use exercises::training::{Setup, Training};
use harness::records::BatchSums;

/// Finds epoch and place by division: an epoch that has ended is then over, and nobody tells of it.
pub struct Checkpoint {
    /// Values by name.
    weights: Vec<(String, Tensor)>,
    /// By the names of their parameters.
    velocities: Vec<(String, Tensor)>,
    steps: usize,
    sums: BatchSums,
    losses: Vec<f64>,
}

/// A checkpoint of a training between two steps.
pub fn save(training: &Training) -> Result<Checkpoint> {
    let Training { network, sgd, steps, sums, losses, .. } = training;
    let copied = |(name, velocity): (String, Tensor)| Ok((name, velocity.copy()?));
    let velocities = sgd.velocities(network.weights()).into_iter().map(copied);
    Ok(Checkpoint {
        weights: network.weights().snapshot()?,
        velocities: velocities.collect::<Result<_>>()?,
        steps: *steps,
        sums: *sums,
        losses: losses.clone(),
    })
}

/// A training that goes on where the checkpoint was saved.
pub fn resume(setup: &Setup, checkpoint: &Checkpoint) -> Result<Training> {
    let Checkpoint { weights, velocities, steps, sums, losses } = checkpoint;
    let (epoch, batches) =
        (steps / setup.batches_per_epoch() + 1, steps % setup.batches_per_epoch());
    let sums = if batches == 0 { BatchSums::default() } else { *sums };
    let mut training = setup.begin()?;
    training.network.weights().set(weights)?;
    training.sgd.set_velocities(training.network.weights(), velocities)?;
    Ok(Training {
        steps: *steps,
        epoch,
        batches,
        rest: setup.rest_of_epoch(epoch, batches),
        sums,
        losses: losses.clone(),
        ..training
    })
}
