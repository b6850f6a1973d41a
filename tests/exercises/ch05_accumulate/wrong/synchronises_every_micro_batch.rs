// expect: rank 0 does not send the same for 3 micro-batches as for one

use candle_core::Tensor;
use datasets::Batch;
use exercises::classifier::Classifier;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Adds up over the ranks after every micro-batch: the right numbers, for several times the messages.
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
            let own = own.iter().map(|own| rank.all_reduce(own, Algorithm::default()));
            let own = own.collect::<Result<Vec<_>, _>>()?;
            sums = Some(match sums {
                None => own,
                Some(sums) => {
                    let both = sums.iter().zip(&own).map(|(sum, gradient)| sum + gradient);
                    both.collect::<Result<_, _>>()?
                }
            });
            samples += batch.len();
        }
        let gradients = sums.unwrap_or_default();
        sgd(model.parameters(), &gradients, learning_rate, samples)?;
    }
    Ok(())
}
