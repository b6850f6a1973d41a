//! The loop: written once, for a model on one device and for one on many.

use std::cell::RefCell;

use datasets::loader::Epochs as _;
use datasets::source::LoadedData;
use harness::records::{EpochRecord, TrainOptions};
use harness::report::Report;
use single_gpu::train::continue_epochs;

use crate::checkpoint::{Checkpoints, Run};
use crate::optimiser::{Extras, Schedule, Sgd};
use crate::shares::Shares;
use crate::weights::Snapshot;
use crate::{Error, Model};

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
    let shares = Shares::new(&data.train, batch_size, seed, precision.weights(), model.hosts());
    let schedule = Schedule { rate: options.learning_rate, warm_up: extras.warm_up };
    let mut sgd = Sgd::new(extras.constants);
    let run = Run::new(checkpoints, data, options, extras, precision, shares.batches_per_epoch());
    let (saver, start) = run.begin(model, &mut sgd, report)?;
    let mut steps = start.steps(shares.batches_per_epoch());
    model.begins_after(steps);
    // The step and the checkpoint after it use the optimiser in turn.
    let sgd = RefCell::new(sgd);
    let records = continue_epochs::<_, Error, _>(
        options,
        &shares,
        report,
        start,
        |share| {
            let (seen, gradients) = model.backward_deferred(share)?;
            let rate = schedule.rate(steps);
            sgd.borrow_mut().step(model.weights(), &gradients, rate, share.samples)?;
            steps += 1;
            // A checkpoint has the sums of all steps before it.
            Ok(if checkpoints.is_some() { seen.read()?.into() } else { seen })
        },
        |position| saver.after_step(position, model.weights(), &sgd.borrow()),
        || model.evaluate(&data.test),
    )?;
    model.ends()?;
    Ok(Trained { records, weights: model.weights().snapshot()? })
}
// ANCHOR_END: train
