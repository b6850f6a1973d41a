// expect: got      samples [0, 1, 4, 5, 8]: only those of rank 0

use candle_core::Tensor;
use exercises::classifier::Classifier;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};
use datasets::Batch;
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Adds up over micro-batches and not over ranks.
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
