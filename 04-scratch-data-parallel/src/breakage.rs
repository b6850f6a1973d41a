//! The field's real bugs, to be run on purpose.
//!
//! Each of these has been shipped in real training code. Most of them train, more or less: that is what
//! makes them hard to see, and why equality with one device is tested after every step. Two of them leave
//! ranks waiting for a message that never comes, and end with an error that names the rank.

use candle_core::{DType, Tensor};
use datasets::Batch;
use harness::records::TrainOptions;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, Communicator};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};

use crate::Error;
use crate::train_batch::{allreduce_all, allreduce_sums, cut_shard};

/// A way to get data parallelism wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Breakage {
    /// Gradients are never added up: k models drift apart, each trained on 1/k of every batch
    SkipAllreduce,
    /// Gradients are averaged over devices, then divided by the batch again: the learning rate is 1/k
    MeanForSum,
    /// The parameters are added up in place of the gradients
    ReduceParams,
    /// Every device trains on the first shard: it counts k times, the rest of the batch not at all
    SameShard,
    /// Every device shuffles with a seed of its own: shares overlap, and some samples are in nobody's
    OwnShuffle,
    /// The last device leaves the loop an epoch before the others, which wait for it
    LeaveEarly,
    /// Device 0 broadcasts alone, in a branch that the others do not take: they receive what they did not ask for
    LoneBroadcast,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::SkipAllreduce,
        Self::MeanForSum,
        Self::ReduceParams,
        Self::SameShard,
        Self::OwnShuffle,
        Self::LeaveEarly,
        Self::LoneBroadcast,
    ];

    /// What this rank's loop is told in place of `options`, which all ranks should be told: two of the bugs
    /// lie outside the step.
    pub fn options(self, options: TrainOptions, rank: usize, world_size: usize) -> TrainOptions {
        match self {
            Self::OwnShuffle => {
                TrainOptions { seed: options.seed.wrapping_add(rank as u64), ..options }
            }
            Self::LeaveEarly if rank + 1 == world_size => {
                TrainOptions { epochs: options.epochs.saturating_sub(1), ..options }
            }
            _ => options,
        }
    }

    /// The bug as the cause of a loss that ran away, where it is one. The other bugs make smaller updates or the same: a
    /// loss that runs away with them does so without them.
    pub fn explains(self, error: &trainer::Error) -> Option<RanAway> {
        match (self, error) {
            (Self::ReduceParams, &trainer::Error::NotFinite { epoch, step, loss, .. }) => {
                Some(RanAway { epoch, step, loss })
            }
            _ => None,
        }
    }
}

/// A loss that became infinite or not a number, as was to be expected.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "the loss is {loss} at step {step} of epoch {epoch}: this is what --break reduce-params does; \
     every step multiplies the weights by the number of devices"
)]
pub struct RanAway {
    /// Counted from 1.
    pub epoch: usize,
    /// Counted from 1, within the epoch.
    pub step: usize,
    /// The loss.
    pub loss: f64,
}

/// What device 0 does alone: `if rank == 0 { broadcast(…) }`.
///
/// # Errors
///
/// When another rank stops, as it will: this is not what it waits for.
pub fn lone_broadcast(rank: &(impl Communicator + ?Sized)) -> Result<(), communicator::Error> {
    if rank.rank() == 0 {
        rank.broadcast(&Tensor::zeros((), DType::F64, rank.device())?, 0)?;
    }
    Ok(())
}

/// [`train_batch`](crate::train_batch()), broken.
///
/// # Errors
///
/// As the working one.
pub fn train_batch_broken(
    rank: &(impl Communicator + ?Sized),
    model: &Lenet,
    batch: &Batch,
    learning_rate: f64,
    algorithm: Algorithm,
    breakage: Breakage,
) -> Result<Step, Error> {
    let world_size = rank.world_size();
    if breakage == Breakage::LoneBroadcast {
        lone_broadcast(rank)?;
    }
    // ANCHOR: breakage
    let index = if breakage == Breakage::SameShard { 0 } else { rank.rank() };
    let shard = cut_shard(batch, world_size, index, rank.device())?;
    let local = local_gradients(model, &shard)?;

    let gradients = match breakage {
        Breakage::SkipAllreduce | Breakage::ReduceParams => local.gradients,
        Breakage::MeanForSum => allreduce_all(rank, &local.gradients, algorithm)?
            .iter()
            .map(|sum| sum / world_size as f64)
            .collect::<Result<_, _>>()?,
        // What is wrong with these is wrong before the gradients are added up.
        Breakage::SameShard
        | Breakage::OwnShuffle
        | Breakage::LeaveEarly
        | Breakage::LoneBroadcast => allreduce_all(rank, &local.gradients, algorithm)?,
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
