//! Checkpoints of a run on one rank or on several.
//!
//! Rank 0 alone reads and writes the files, and broadcasts the state of the run. Hosts need no common file system, and all
//! ranks resume from the same checkpoint. The other ranks wait while rank 0 writes, so writing must take less than the time
//! limit of a collective.
//!
//! A run may resume on another number of ranks, with one exception: local batch norms normalise by each rank's part of a
//! batch, so the number of parts is one of the settings. A run with `--shards` ends with the same bits on any number of
//! ranks.

use candle_core::Tensor;
use checkpoints::{Checkpoints, Configuration, Folder};
use datasets::source::LoadedData;
use harness::records::{TrainOptions, TrainerState};
use harness::report::Report;
use harness::report::trace::COMPUTE;
use ops::parameters::overwrite;
use ops::weights_hash::WeightsHash;
use params_and_allreduce::communicator::SharedCommunicator;
use tracing::info_span;

use crate::ddp::{alike, receive};
use crate::optimizer::{Extras, Sgd};
use crate::weights::Weights;
use crate::{Error, Model, replicas, text};

// ANCHOR: begin
/// Begins a run, or resumes it from a checkpoint. All ranks call this together.
///
/// Returns the folder for the checkpoints, which rank 0 alone has, and the state of the training loop. When the run
/// resumes, the model and the optimiser have the values of the checkpoint. Fails when the ranks have different settings, when
/// the folder or the checkpoint cannot be used, when the model is one part of several, or when another rank stops or stalls.
pub(crate) fn begin(
    model: &impl Model,
    sgd: &mut Sgd,
    data: &LoadedData,
    options: &TrainOptions,
    extras: &Extras,
    checkpoints: Option<&Checkpoints>,
    report: &Report<'_>,
) -> Result<(Option<Folder>, TrainerState), Error> {
    let rank = model.rank();
    if checkpoints.is_none() && rank.is_none() {
        // This run does not need the hash of all images.
        return Ok((None, TrainerState::default()));
    }
    let mut configuration =
        checkpoints.map_or_else(Configuration::default, |it| it.configuration.clone());
    configuration.extend(settings(model.weights(), data, options, extras));
    if let Some(rank) = rank {
        alike::compare(rank, &to_compare(checkpoints, &configuration, data))?;
    }
    let Some(checkpoints) = checkpoints else { return Ok((None, TrainerState::default())) };
    rank.map_or(Ok(()), |rank| check_replicas(rank, model.weights()))?;
    let checkpoints = Checkpoints { configuration, ..checkpoints.clone() };
    let resumes = checkpoints.resume.is_some();
    let batches_per_epoch = data.train.len().div_ceil(options.batch_size);
    let folder = match rank {
        Some(rank) if rank.rank() > 0 => None,
        _ => Some(Folder::open(checkpoints, batches_per_epoch, options.epochs, report)?),
    };
    let state = match resumes {
        true => restore(folder.as_ref(), model, sgd, report)?,
        false => TrainerState::default(),
    };
    Ok((folder, state))
}
// ANCHOR_END: begin

// ANCHOR: settings
/// The settings of the training loop.
fn settings(
    weights: &Weights,
    data: &LoadedData,
    options: &TrainOptions,
    extras: &Extras,
) -> [(&'static str, String); 11] {
    let (precision, constants) = (weights.precision, extras.constants);
    [
        ("dtype", precision.weights().as_str().to_owned()),
        ("precision", precision.to_string()),
        ("data", data.name.clone()),
        ("training images", data.train.len().to_string()),
        ("training images with hash", data.train.fingerprint().to_owned()),
        ("batch size", options.batch_size.to_string()),
        // Debug prints a very large or small number with an exponent, and exactly.
        ("learning rate", format!("{:?}", options.learning_rate)),
        ("momentum", format!("{:?}", constants.momentum)),
        ("weight decay", format!("{:?}", constants.weight_decay)),
        ("warm-up", extras.warm_up.to_string()),
        ("seed", options.seed.to_string()),
    ]
}

/// The values that must be the same on all ranks: a rank that begins must not meet ranks that resume. The epochs are not among
/// them: a rank that leaves the loop early is named by the ranks that wait for it.
fn to_compare(
    checkpoints: Option<&Checkpoints>,
    configuration: &Configuration,
    data: &LoadedData,
) -> Vec<(String, String)> {
    let asked = |it: &Checkpoints| format!("every {}, resume {:?}", it.every, it.resume);
    let mut all = Configuration::default();
    all.extend([("checkpoints", checkpoints.map_or_else(|| "none".to_owned(), asked))]);
    all.0.extend_from_slice(&configuration.0);
    // Ranks share the test images. They are no setting of a checkpoint: a run may resume with other test images.
    all.extend([
        ("test images", data.test.len().to_string()),
        ("test images with hash", data.test.fingerprint().to_owned()),
    ]);
    all.0
}
// ANCHOR_END: settings

/// Checks that all ranks have the same parameters. If not, each rank holds a part of the model.
fn check_replicas(rank: &SharedCommunicator, weights: &Weights) -> Result<(), Error> {
    let mut parameters = weights.snapshot()?;
    parameters.truncate(weights.parameters.len());
    let hashes = replicas::hashes_everywhere(&**rank, &parameters)?;
    if replicas::check(&hashes).is_err() {
        let reason = "a model in parts has no checkpoints: each rank would write its own part, and none the whole";
        return Err(Error::Model(reason.into()));
    }
    Ok(())
}

// ANCHOR: state_of
/// All tensors that a step changes, by name: parameters, buffers, velocities. They share the memory of the model's and the
/// optimiser's tensors.
fn state_of(weights: &Weights, sgd: &Sgd) -> Vec<(String, Tensor)> {
    let values = weights.iter().map(|named| (named.name.clone(), named.tensor.detach()));
    let velocities = sgd.velocities(weights).into_iter();
    let velocities = velocities.map(|(name, tensor)| (format!("velocity/{name}"), tensor));
    values.chain(velocities).collect()
}
// ANCHOR_END: state_of

// ANCHOR: restore
/// Overwrites the model and the optimiser with a checkpoint's values, and returns the checkpoint's position. Rank 0 has the
/// `folder`.
fn restore(
    folder: Option<&Folder>,
    model: &impl Model,
    sgd: &mut Sgd,
    report: &Report<'_>,
) -> Result<TrainerState, Error> {
    sgd.begin(model.weights())?;
    let tensors = state_of(model.weights(), sgd);
    let mut found = None;
    if let Some(folder) = folder {
        let (state, values) = folder.find(&tensors, report)?;
        for ((_, tensor), value) in tensors.iter().zip(&values) {
            overwrite(tensor, value)?;
        }
        found = Some(state);
    }
    if let Some(rank) = model.rank() {
        found = text::value_of_rank_0(&**rank, &found)?;
        tensors.iter().try_for_each(|(_, tensor)| receive(rank, tensor))?;
        let hash = format!("{:?}", WeightsHash::new(&tensors)?);
        alike::compare(rank, &[("state".to_owned(), hash)])?;
    }
    Ok(found.ok_or_else(|| candle_core::Error::msg("rank 0 has found no checkpoint"))?)
}

/// Writes a checkpoint after a step, if one is due. Only rank 0 has a `folder`. Fails when a file cannot be written or removed.
pub(crate) fn after_step(
    folder: Option<&Folder>,
    state: &TrainerState,
    weights: &Weights,
    sgd: &Sgd,
) -> Result<(), Error> {
    if let Some(folder) = folder.filter(|folder| folder.is_due(state)) {
        let _span = info_span!(target: COMPUTE, "checkpoint").entered();
        folder.save(state, &state_of(weights, sgd))?;
    }
    Ok(())
}
// ANCHOR_END: restore
