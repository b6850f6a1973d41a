//! k decides how large the global batch is, and the rate if that was asked for. It divides nothing.

use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::scaling::{RateRule, Tuned};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

pub fn scaled_step(
    rank: &impl Communicator,
    model: &Classifier,
    epoch: &Batch,
    step: usize,
    tuned: Tuned,
    rule: RateRule,
) -> Result<(), Error> {
    let devices = rank.world_size();
    let start = step * devices * tuned.batch_size;
    let size = (devices * tuned.batch_size).min(epoch.len() - start);
    let images = epoch.images.narrow(0, start, size)?;
    let labels = epoch.labels.narrow(0, start, size)?;

    let (images, labels) = split_batch(&images, &labels, devices)?.swap_remove(rank.rank());
    let local = model.gradients(&Batch { images, labels })?;
    let sum = |gradient| rank.all_reduce(gradient, Algorithm::default());
    let gradients = local.gradients.iter().map(sum).collect::<Result<Vec<_>, _>>()?;

    let rate = match rule {
        RateRule::Keep => tuned.learning_rate,
        RateRule::Linear => tuned.learning_rate * devices as f64,
    };
    // The sum is over the whole batch, and so is the division.
    sgd(model.parameters(), &gradients, rate, size)?;
    Ok(())
}

exercises::check!(ch04_batch_scaling, scaled_step, run);
