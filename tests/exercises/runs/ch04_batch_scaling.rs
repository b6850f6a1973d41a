//! The learner's step with a batch for each device, in chapter 4's training.

use super::data_parallel::{our_step, setting};
use super::prelude::*;
pub use crate::checks::ch04_batch_scaling::Answer;
use crate::scaling::{RateRule, Tuned};

/// The settings of one device. On two devices, batch and rate are twice as large.
const TUNED: Tuned = Tuned { batch_size: 8, learning_rate: 0.1 };

/// A step of an answer. Each rank gets the whole batch, which is an epoch of one step.
pub(super) fn step(
    scaled_step: Answer,
    comm: &SharedCommunicator,
    lenet: Lenet,
    batch: &LocalBatch,
    (tuned, rule): (Tuned, RateRule),
) -> Result<Step, TrainError> {
    let model = Classifier::of(lenet);
    scaled_step(&Peer::new(comm.clone()), &model, &batch.shards[0], 0, tuned, rule)?;
    let sums = allreduce_sums(&**comm, model.sums(), Algorithm::default())?;
    Ok(Step { sums, gradients: Vec::new() })
}

/// Trains with both rules of the rate, beside one device and beside our step. Fails with the answer.
pub fn run(scaled_step: Answer) -> Run {
    let (data, large) = setting();
    let Tuned { batch_size, learning_rate } = TUNED;
    let small = TrainOptions { batch_size, learning_rate, ..large };
    let ours = our_step(Algorithm::default());
    let of_ours = |name, devices, options| {
        Training::of_lenet(name, devices, (&data, options), Shards::of_rank, &ours)
    };
    let yours = |name, rule| {
        Training::of_lenet(
            name,
            2,
            (&data, &large),
            |_, _| Shards::WHOLE,
            &|comm, model, batch, _| {
                let model = Lenet::with_parameters(model.parameters().clone())?;
                step(scaled_step, comm, model, batch, (TUNED, rule))
            },
        )
    };
    let all = [
        of_ours("one device, batch 8, rate 0.1", 1, &small)?,
        of_ours("ours, 2 devices, batch 16, rate 0.2", 2, &large)?,
        yours("yours, 2 devices, RateRule::Linear", RateRule::Linear)?,
        yours("yours, 2 devices, RateRule::Keep", RateRule::Keep)?,
    ];
    show("LeNet", &all, &[])?;
    Ok(paragraph(conclusion(&all[2], &[("ours", &all[1])]))?)
}
