//! The gradients of the shards add up to the gradients of the batch. The update divides once, by the whole batch.

use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator;
use scratch_data_parallel::{Error, allreduce_sums};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::LocalBatch;

pub fn train_batch(
    rank: &impl Communicator,
    model: &Lenet,
    batch: &LocalBatch,
    learning_rate: f64,
    algorithm: Algorithm,
) -> Result<Step, Error> {
    let shard = batch.shards[0].to_device(rank.device())?;
    let local = local_gradients(model, &shard)?;
    let sum = |gradient| rank.all_reduce(gradient, algorithm);
    let gradients = local.gradients.iter().map(sum).collect::<Result<Vec<_>, _>>()?;
    sgd(model.parameters(), &gradients, learning_rate, batch.samples)?;
    Ok(Step { sums: allreduce_sums(rank, local.sums, algorithm)?, gradients })
}

exercises::check!(ch04_train_batch, train_batch, run);
