//! Sums of sums: first over micro-batches, alone, then over ranks, together. Only the update divides.

use candle_core::Tensor;
use datasets::Batch;
use exercises::classifier::Classifier;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

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
            // Every rank knows how large the whole micro-batch is.
            samples += batch.len();
        }
        let sums = sums.iter().flatten().map(|sum| rank.all_reduce(sum, Algorithm::default()));
        let gradients = sums.collect::<Result<Vec<_>, _>>()?;
        sgd(model.parameters(), &gradients, learning_rate, samples)?;
    }
    Ok(())
}

exercises::check!(ch05_accumulate, train, run);
