// expect: rank 0 takes 5 samples at once

use candle_core::Tensor;
use datasets::Batch;
use exercises::classifier::Classifier;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Puts the micro-batches together, into the batch that did not fit into memory.
pub fn train(
    rank: &impl Communicator,
    model: &Classifier,
    micro_batches: &[Batch],
    per_update: usize,
    learning_rate: f64,
) -> Result<(), Error> {
    for group in micro_batches.chunks(per_update) {
        let mut own = Vec::new();
        for batch in group {
            let shards = split_batch(&batch.images, &batch.labels, rank.world_size())?;
            own.push(shards[rank.rank()].clone());
        }
        let (images, labels): (Vec<Tensor>, Vec<Tensor>) = own.into_iter().unzip();
        let batch = Batch { images: Tensor::cat(&images, 0)?, labels: Tensor::cat(&labels, 0)? };
        let local = model.gradients(&batch)?;
        let sum = |gradient| rank.all_reduce(gradient, Algorithm::default());
        let gradients = local.gradients.iter().map(sum).collect::<Result<Vec<_>, _>>()?;
        let samples = group.iter().map(Batch::len).sum();
        sgd(model.parameters(), &gradients, learning_rate, samples)?;
    }
    Ok(())
}
