// expect: RateRule::Keep, step 0: the update is 1/2 of

use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::scaling::{RateRule, Tuned};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Takes the mean over devices of what the update divides by the whole batch anyway.
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
    let sum = |gradient| {
        Ok::<_, Error>((rank.all_reduce(gradient, Algorithm::default())? / devices as f64)?)
    };
    let gradients = local.gradients.iter().map(sum).collect::<Result<Vec<_>, _>>()?;

    let rate = match rule {
        RateRule::Keep => tuned.learning_rate,
        RateRule::Linear => tuned.learning_rate * devices as f64,
    };
    sgd(model.parameters(), &gradients, rate, size)?;
    Ok(())
}
