//! Chapter 4, `book/src/ch04-data-parallel.md`: k devices, a batch k times as large.
//!
//! Check your answer: `cargo course check ch04_batch_scaling`

use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::scaling::{RateRule, Tuned};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Step number `step` of an epoch on k devices, each of which works on `tuned.batch_size` samples.
///
/// The result is the update that *one* device makes with a batch k times as large. The steps of an epoch use each of its
/// samples once, in order, so the last batch may be short.
///
/// All k ranks call this together, with equal models and the same arguments:
///
/// | name | type | what |
/// | --- | --- | --- |
/// | `model` | [`Classifier`] | `model.gradients(&batch)?.gradients` are sums over a [`Batch`]; `model.parameters()` is for [`sgd`] |
/// | `epoch` | [`Batch`] | all samples of the epoch, shuffled: `images` `[N, 1, 28, 28]` and `labels` `[N]`, which [`split_batch`] cuts |
/// | `step` | `usize` | counted from 0; at least one sample is left for it |
/// | `tuned` | [`Tuned`] | the `batch_size` and the `learning_rate` that were found good on one device |
/// | `rule` | [`RateRule`] | the rate on k devices: `Keep` keeps it, `Linear` multiplies it by k, in every step of the epoch |
///
/// Afterwards all models are equal to the last bit. Each rank has computed the gradients of its own samples only, at most
/// `tuned.batch_size` of them. Each gradient is added up in one all-reduce, of any [`Algorithm`].
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn scaled_step(
    rank: &impl Communicator,
    model: &Classifier,
    epoch: &Batch,
    step: usize,
    tuned: Tuned,
    rule: RateRule,
) -> Result<(), Error> {
    // TODO: on paper, write down first how often k appears.
    todo!("a step on k devices")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch04_batch_scaling, scaled_step, run);
