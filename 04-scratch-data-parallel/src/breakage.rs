//! Real bugs of the field, to be run on purpose.
//!
//! Each of these bugs was in published training code. Most of these runs still train, which makes the bug hard to find.
//! Tests therefore compare with one device after every step. Two of the bugs break the order of the messages, and the run
//! ends with an error that names a rank.

use candle_core::{DType, Tensor};
use clap::ValueEnum as _;
use harness::records::TrainOptions;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, Communicator};
use params_and_allreduce::thread::{Cause, RankFailure};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::{LocalBatch, Shards};

use crate::Error;
use crate::train_batch::allreduce_sums;

// ANCHOR: bugs
/// A bug in data-parallel training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Breakage {
    /// Gradients are never added up: each of the k models trains alone, on 1/k of every batch
    SkipAllreduce,
    /// Gradients are averaged over the devices, and the update divides again: each update is k times too small
    MeanForSum,
    /// The parameters are added up in place of the gradients
    ReduceParams,
    /// Every device trains on the first shard: its samples count k times, and all others are ignored
    SameShard,
    /// Every device shuffles with its own seed: some samples are in several shards, and some in none
    OwnShuffle,
    /// The last device leaves the loop one epoch early, and the remaining devices wait for it
    LeaveEarly,
    /// Device 0 alone takes a branch with a broadcast: other devices receive a message that they do not expect
    LoneBroadcast,
    /// One of these bugs, or none
    #[value(name = "mystery:1", hide = true)]
    Mystery1,
    /// One of these bugs, or none
    #[value(name = "mystery:2", hide = true)]
    Mystery2,
    /// One of these bugs, or none
    #[value(name = "mystery:3", hide = true)]
    Mystery3,
    /// One of these bugs, or none
    #[value(name = "mystery:4", hide = true)]
    Mystery4,
}
// ANCHOR_END: bugs

impl Breakage {
    /// Returns all bugs that have a name.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants()[..7].iter().copied()
    }

    /// Returns the bug behind a mystery. A mystery without a bug is a healthy run, and stays as it is.
    #[must_use]
    pub fn solved(self) -> Self {
        // By numbers, so nobody reads the answers of the exercise by accident.
        Self::value_variants()[[0, 1, 2, 3, 4, 5, 6, 1, 8, 0, 3][self as usize]]
    }

    /// Returns the options of this rank's loop. Two of the bugs change them.
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

    /// Returns the shards that a rank loads. One of the bugs changes them.
    pub fn shards(self, own: Shards) -> Shards {
        match self {
            Self::SameShard => Shards { held: 0..1, ..own },
            _ => own,
        }
    }

    /// Names the bug as the cause of an infinite loss or a NaN, if it is [`ReduceParams`](Self::ReduceParams).
    pub fn explain(self, mut failure: RankFailure<Error>) -> RankFailure<Error> {
        if self == Self::ReduceParams
            && let Cause::Error(Error::Train(trainer::Error::NotFinite { cause, .. })) =
                &mut failure.cause
        {
            *cause = "this is what --break reduce-params does; every step replaces the weights by the sum of the \
                      weights of all replicas"
                .to_owned();
        }
        failure
    }
}

// ANCHOR: lone_broadcast
/// Broadcasts on rank 0 only, as in `if rank == 0 { broadcast(…) }`. Fails when another rank ends. The ranks above 0 expect
/// a gradient, and end with an error.
pub fn lone_broadcast(rank: &(impl Communicator + ?Sized)) -> Result<(), communicator::Error> {
    if rank.rank() == 0 {
        rank.broadcast(&Tensor::zeros((), DType::F64, rank.device())?, 0)?;
    }
    Ok(())
}
// ANCHOR_END: lone_broadcast

/// Makes a step as [`train_batch`](crate::train_batch()) does, but with a bug. Fails as `train_batch` does.
pub fn train_batch_broken(
    rank: &(impl Communicator + ?Sized),
    model: &Lenet,
    batch: &LocalBatch,
    learning_rate: f64,
    algorithm: Algorithm,
    breakage: Breakage,
) -> Result<Step, Error> {
    // ANCHOR: breakage
    if breakage == Breakage::LoneBroadcast {
        lone_broadcast(rank)?;
    }
    let local = local_gradients(model, &batch.shards[0].to_device(rank.device())?)?;
    let gradients = match breakage {
        Breakage::SkipAllreduce | Breakage::ReduceParams => local.gradients,
        _ => {
            let mut sums = Vec::new();
            for gradient in &local.gradients {
                let sum = rank.all_reduce(gradient, algorithm)?;
                let is_mean = breakage == Breakage::MeanForSum;
                sums.push(if is_mean { (sum / rank.world_size() as f64)? } else { sum });
            }
            sums
        }
    };
    sgd(model.parameters(), &gradients, learning_rate, batch.samples)?;
    let sums = allreduce_sums(rank, local.sums, algorithm)?;

    if breakage == Breakage::ReduceParams {
        for parameter in model.parameters().iter() {
            let sum = rank.all_reduce(&parameter.value.as_detached_tensor(), algorithm)?;
            parameter.value.set(&sum)?;
        }
    }
    // ANCHOR_END: breakage
    Ok(Step { sums, gradients })
}
