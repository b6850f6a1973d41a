// expect: RateRule::Linear, step 0: the update is 1/2 of

use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::scaling::{RateRule, Tuned};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Never looks at the rule.
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

    let _ = rule;
    let rate = tuned.learning_rate;
    sgd(model.parameters(), &gradients, rate, size)?;
    Ok(())
}
