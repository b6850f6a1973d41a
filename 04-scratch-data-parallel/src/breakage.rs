//! The field's real bugs, to be run on purpose.
//!
//! Each of these has been shipped in real training code. They train, more or less: that is what makes
//! them hard to see, and why equality with one device is tested after every step.

use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator;
use single_gpu::data::Batch;
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::Step;

use crate::Error;
use crate::train_batch::{allreduce_all, allreduce_sums, shard, shard_gradients};

/// A way to get data parallelism wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Breakage {
    /// Gradients are never added up: k models drift apart, each trained on 1/k of the data
    SkipAllreduce,
    /// Gradients are averaged over devices, then divided by the batch again: the learning rate is 1/k
    MeanForSum,
    /// The parameters are added up in place of the gradients
    ReduceParams,
    /// Every device trains on the first shard: one shard counted k times, the rest never seen
    SameShard,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::SkipAllreduce, Self::MeanForSum, Self::ReduceParams, Self::SameShard];
}

/// [`train_batch`](crate::train_batch()), broken.
///
/// # Errors
///
/// As the working one.
pub fn train_batch_broken(
    rank: &impl Communicator,
    model: &Lenet,
    batch: &Batch,
    learning_rate: f64,
    algorithm: Algorithm,
    breakage: Breakage,
) -> Result<Step, Error> {
    let world_size = rank.world_size();
    // ANCHOR: breakage
    let index = if breakage == Breakage::SameShard { 0 } else { rank.rank() };
    let shard = shard(batch, world_size, index, rank.device())?;
    let local = shard_gradients(model, &shard)?;

    let gradients = match breakage {
        Breakage::SkipAllreduce | Breakage::ReduceParams => local.gradients,
        Breakage::SameShard => allreduce_all(rank, &local.gradients, algorithm)?,
        Breakage::MeanForSum => allreduce_all(rank, &local.gradients, algorithm)?
            .iter()
            .map(|sum| sum / world_size as f64)
            .collect::<Result<_, _>>()?,
    };
    sgd(model.parameters(), &gradients, learning_rate, batch.len())?;

    if breakage == Breakage::ReduceParams {
        for parameter in model.parameters() {
            let local = [parameter.value.as_detached_tensor()];
            let sum = allreduce_all(rank, &local, algorithm)?.swap_remove(0);
            parameter.value.set(&sum)?;
        }
    }
    // ANCHOR_END: breakage
    Ok(Step { sums: allreduce_sums(rank, local.sums, algorithm)?, gradients })
}
