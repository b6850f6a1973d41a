// expect: the mean of the micro-batches' means

use candle_core::Tensor;
use datasets::Batch;
use exercises::classifier::Classifier;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// The mean of every micro-batch, and then the mean of those: samples of a small one count more.
pub fn train(
    rank: &impl Communicator,
    model: &Classifier,
    micro_batches: &[Batch],
    per_update: usize,
    learning_rate: f64,
) -> Result<(), Error> {
    for group in micro_batches.chunks(per_update) {
        let mut sums: Option<Vec<Tensor>> = None;
        let mut samples = 0;
        for batch in group {
            let shards = split_batch(&batch.images, &batch.labels, rank.world_size())?;
            let (images, labels) = shards[rank.rank()].clone();
            let own = model.gradients(&Batch { images, labels })?.gradients;
            // Of an empty one there is no mean.
            let share = 1.0 / batch.len().max(1) as f64;
            let own = own.iter().map(|own| own * share).collect::<Result<Vec<_>, _>>()?;
            sums = Some(match sums {
                None => own,
                Some(sums) => {
                    let both = sums.iter().zip(&own).map(|(sum, gradient)| sum + gradient);
                    both.collect::<Result<_, _>>()?
                }
            });
            samples += batch.len();
        }
        let sums = sums.iter().flatten().map(|sum| rank.all_reduce(sum, Algorithm::default()));
        let gradients = sums.collect::<Result<Vec<_>, _>>()?;
        sgd(model.parameters(), &gradients, learning_rate, group.len())?;
    }
    Ok(())
}
