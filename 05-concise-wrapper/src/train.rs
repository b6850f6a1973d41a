//! The loop: written once, for a model on one device and for one on many.

use checkpoints::Checkpoints;
use datasets::loader::Epochs as _;
use datasets::source::LoadedData;
use harness::records::{EpochRecord, TrainOptions};
use harness::report::Report;
use trainer::TrainingRun;

use crate::optimizer::{Extras, Schedule, Sgd};
use crate::weights::Snapshot;
use crate::{Error, Model, resume};
use split_batch::loader::ShardLoader;

/// A finished run.
#[derive(Clone, Debug)]
pub struct Trained {
    /// What each epoch measured.
    pub records: Vec<EpochRecord>,
    /// The final parameters and buffers.
    pub weights: Snapshot,
}

/// Trains a model, plain or wrapped. With a [`Ddp`](crate::Ddp) model all ranks call this together.
///
/// With `checkpoints` the run may begin where an earlier one ended; its records are then among the result's.
///
/// # Errors
///
/// The first failure of a step, an evaluation, a checkpoint or a report; when the loss runs away; when ranks
/// were not started alike; or when another rank stops or stalls.
// ANCHOR: train
pub fn train(
    model: &impl Model,
    data: &LoadedData,
    options: &TrainOptions,
    extras: &Extras,
    checkpoints: Option<&Checkpoints>,
    report: &mut Report<'_>,
) -> Result<Trained, Error> {
    let (precision, TrainOptions { batch_size, seed, .. }) = (model.precision(), *options);
    let shares =
        ShardLoader::new(&data.train, batch_size, seed, precision.weights(), model.hosts());
    let schedule = Schedule { rate: options.learning_rate, warm_up: extras.warm_up };
    let mut sgd = Sgd::new(extras.constants);
    let (folder, start) =
        resume::begin(model, &mut sgd, data, options, extras, checkpoints, report)?;
    let mut steps = start.steps(shares.batches_per_epoch());
    model.begins_after(steps);
    let mut run = TrainingRun::resume(options, &shares, report, start);
    while run.next_epoch()? {
        while let Some(share) = run.next_batch()? {
            let (sums, gradients) = model.backward_deferred(&share)?;
            sgd.step(model.weights(), &gradients, schedule.rate(steps), share.samples)?;
            steps += 1;
            // A checkpoint has the sums of all steps before it.
            let sums = if checkpoints.is_some() { sums.read()?.into() } else { sums };
            if let Some(state) = run.step_done(sums)? {
                resume::after_step(folder.as_ref(), state, model.weights(), &sgd)?;
            }
        }
        run.epoch_done(model.evaluate(&data.test)?)?;
    }
    model.ends()?;
    Ok(Trained { records: run.into_records(), weights: model.weights().snapshot()? })
}
// ANCHOR_END: train
