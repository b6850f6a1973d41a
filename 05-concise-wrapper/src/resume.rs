//! Checkpoints of a run on one rank or on several.
//!
//! Rank 0 alone reads and writes the files, and broadcasts the state of the run. Ranks above 0 wait while rank 0 writes, so
//! writing must take less than the time limit of a collective.

use candle_core::Tensor;
use checkpoints::{Checkpoints, Configuration, Folder};
use datasets::source::LoadedData;
use harness::records::{TrainOptions, TrainerState};
use harness::report::Report;
use ops::update::overwrite;

use crate::ddp::{alike, receive};
use crate::optimizer::Optimizer;
use crate::weights::Weights;
use crate::{Error, Model, replicas, text};

// ANCHOR: begin
/// Begins a run, or resumes it from a checkpoint. All ranks call this together. Returns the folder for the checkpoints, which
/// rank 0 alone has, and the state of the training loop.
///
/// Fails when the ranks have different settings, when the folder or the checkpoint cannot be used, when the model is one
/// part of several, or when another rank stops or stalls.
pub(crate) fn begin(
    model: &impl Model,
    (optimizer, warm_up): (&mut dyn Optimizer, usize),
    data: &LoadedData,
    options: &TrainOptions,
    checkpoints: Option<&Checkpoints>,
    report: &Report<'_>,
) -> Result<(Option<Folder>, TrainerState), Error> {
    let (rank, weights) = (model.rank(), model.weights());
    if checkpoints.is_none() && rank.is_none() {
        // This run does not need the hash of all images.
        return Ok((None, TrainerState::default()));
    }
    // Without the epochs: a run may resume for longer. Debug prints a very large or small number exactly.
    let mut configuration = checkpoints.map(|it| it.configuration.clone()).unwrap_or_default();
    configuration.extend([
        ("dtype", weights.precision.weights().as_str().to_owned()),
        ("precision", weights.precision.to_string()),
        ("data", data.name.clone()),
        ("training images", data.train.len().to_string()),
        ("training images with hash", data.train.fingerprint().to_owned()),
        ("batch size", options.batch_size.to_string()),
        ("learning rate", format!("{:?}", options.learning_rate)),
    ]);
    let settings = optimizer.settings().into_iter();
    configuration.extend(settings.map(|(name, value)| (name, format!("{value:?}"))));
    configuration.extend([("warm-up", warm_up.to_string()), ("seed", options.seed.to_string())]);
    if let Some(rank) = rank {
        // A rank that begins must not meet ranks that resume. A run may resume with other test images.
        let asked = |it: &Checkpoints| format!("every {}, resume {:?}", it.every, it.resume);
        let mut all = Configuration::default();
        all.extend([
            ("checkpoints", checkpoints.map_or("none".to_owned(), asked)),
            ("test images with hash", data.test.fingerprint().to_owned()),
        ]);
        alike::compare(rank, &[&all.0[..], &configuration.0].concat())?;
    }
    let Some(checkpoints) = checkpoints else { return Ok((None, TrainerState::default())) };
    if let Some(rank) = rank {
        let parameters = weights.snapshot()?[..weights.parameters.len()].to_vec();
        if replicas::check(&replicas::hashes(&**rank, &parameters)?).is_err() {
            let reason = "a model in parts has no checkpoints: each rank would write its own part, and none the whole";
            return Err(Error::Model(reason.into()));
        }
    }
    let mut folder = None;
    if rank.is_none_or(|rank| rank.rank() == 0) {
        let checkpoints = Checkpoints { configuration, ..checkpoints.clone() };
        let batches_per_epoch = data.train.len().div_ceil(options.batch_size);
        folder = Some(Folder::open(checkpoints, batches_per_epoch, options.epochs, report)?);
    }
    let resumes = checkpoints.resume.is_some();
    let restored =
        resumes.then(|| restore(folder.as_ref(), model, optimizer, report)).transpose()?;
    Ok((folder, restored.unwrap_or_default()))
}
// ANCHOR_END: begin

// ANCHOR: restore
/// All tensors that a step changes, by name: parameters, buffers, the state of the optimizer. Tensors of the model share their
/// memory, and those of the optimizer may.
pub(crate) fn state_of(
    weights: &Weights,
    optimizer: &dyn Optimizer,
) -> Result<Vec<(String, Tensor)>, Error> {
    let values = weights.iter().map(|named| (named.name.clone(), named.tensor.detach()));
    Ok(values.chain(optimizer.state(weights)?).collect())
}

/// Overwrites the model and the optimizer with a checkpoint's values, and returns the state of the training loop. Rank 0 has
/// the `folder`.
fn restore(
    folder: Option<&Folder>,
    model: &impl Model,
    optimizer: &mut dyn Optimizer,
    report: &Report<'_>,
) -> Result<TrainerState, Error> {
    let weights = model.weights();
    let mut tensors = state_of(weights, optimizer)?;
    let mut state = TrainerState::default();
    if let Some(folder) = folder {
        let (found, values) = folder.find(&tensors, report)?;
        for ((_, tensor), value) in tensors.iter().zip(&values) {
            overwrite(tensor, value)?;
        }
        state = found;
    }
    if let Some(rank) = model.rank() {
        state = text::value_of_rank_0(&**rank, &state)?;
        tensors.iter().try_for_each(|(_, tensor)| receive(rank, tensor))?;
    }
    optimizer.keep(tensors.split_off(weights.iter().count()));
    Ok(state)
}
// ANCHOR_END: restore
