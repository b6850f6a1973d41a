//! Checkpoints of a run on one rank or on several.
//!
//! Rank 0 alone reads and writes the files, and broadcasts the state of the run. Ranks above 0 wait while rank 0
//! writes, so writing must take less than the time limit of a collective. Stage 7 has another [`Store`], in which each
//! rank writes its part.

use std::path::Path;

use checkpoints::{Checkpoints, Configuration, Folder, take};
use datasets::source::LoadedData;
use harness::records::{TrainOptions, TrainerState};
use harness::report::Report;
use ops::update::overwrite;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::ddp::{alike, receive};
use crate::optimizer::Optimizer;
use crate::weights::{Snapshot, Weights};
use crate::{Error, Model, replicas, text};

// ANCHOR: begin
/// Begins a run, or resumes it from a checkpoint. All ranks call this together. Returns the folder for the
/// checkpoints, which rank 0 alone has, and the state of the training loop.
///
/// Fails when the ranks have different settings, when the folder or the checkpoint cannot be used, when the model is one
/// part of several, or when another rank stops or stalls.
pub(crate) fn begin(
    model: &impl Model,
    (optimizer, warm_up): (&mut dyn Optimizer, usize),
    data: &LoadedData,
    options: &TrainOptions,
    store: Option<&dyn Store>,
    report: &Report<'_>,
) -> Result<(Option<Folder>, TrainerState), Error> {
    let (rank, weights) = (model.rank(), model.weights());
    let checkpoints = store.map(Store::flags);
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
    let Some((store, checkpoints)) = store.zip(checkpoints) else { return Ok(Default::default()) };
    rank.map_or(Ok(()), |rank| store.check(rank, weights))?;
    let flags = Checkpoints { configuration, ..checkpoints.clone() };
    let batches = data.train.len().div_ceil(options.batch_size);
    let writes = rank.is_none_or(|rank| rank.rank() == 0);
    let folder =
        writes.then(|| Folder::open(flags, batches, options.epochs, report)).transpose()?;
    if checkpoints.resume.is_none() {
        return Ok((folder, TrainerState::default()));
    }
    let mut tensors = state_of(weights, optimizer)?;
    let state = store.read(folder.as_ref(), &tensors, rank, report)?;
    optimizer.keep(tensors.split_off(weights.iter().count()));
    Ok((folder, state))
}
// ANCHOR_END: begin

// ANCHOR: restore
/// All tensors that a step changes, by name: parameters, buffers, the state of the optimizer. Tensors of the model
/// share their memory, and those of the optimizer may.
pub(crate) fn state_of(weights: &Weights, optimizer: &dyn Optimizer) -> Result<Snapshot, Error> {
    let values = weights.iter().map(|named| (named.name.clone(), named.tensor.detach()));
    Ok(values.chain(optimizer.state(weights)?).collect())
}

/// Writes a checkpoint. All ranks call this together. If a tensor is infinite or NaN on a rank, no rank writes. That rank
/// fails with the name of the tensor. The other ranks fail because that rank has stopped.
pub(crate) fn write(
    store: &dyn Store,
    folder: Option<&Folder>,
    (file, state): (&Path, &TrainerState),
    model: &impl Model,
    optimizer: &dyn Optimizer,
) -> Result<(), Error> {
    let tensors = state_of(model.weights(), optimizer)?;
    store.flags().check_finite(file, &tensors)?;
    model.rank().map_or(Ok(()), |rank| rank.barrier())?;
    store.write(folder, (file, state), &tensors)
}

/// Where checkpoints are. These methods are of a model that rank 0 has whole. All ranks call them together, each with
/// all tensors that a step changes there. Rank 0 alone has the folder.
pub trait Store {
    /// The flags, and settings that the training loop does not know.
    fn flags(&self) -> &Checkpoints;

    /// Refuses a model in parts.
    fn check(&self, rank: &SharedCommunicator, weights: &Weights) -> Result<(), Error> {
        let parameters = weights.snapshot()?[..weights.parameters.len()].to_vec();
        let alike = replicas::check(&replicas::hashes(&**rank, &parameters)?);
        let reason = "a model in parts has no checkpoints: each rank would write its own part, and none the whole";
        alike.map_err(|_| Error::Model(reason.into()))
    }

    /// Writes a checkpoint: the file, the state of the training loop, and the tensors.
    fn write(
        &self,
        folder: Option<&Folder>,
        (file, state): (&Path, &TrainerState),
        tensors: &Snapshot,
    ) -> Result<(), Error> {
        Ok(folder.map_or(Ok(()), |folder| folder.write(file, state, tensors))?)
    }

    /// Overwrites the tensors with a checkpoint's, and returns the state of the training loop.
    fn read(
        &self,
        folder: Option<&Folder>,
        tensors: &Snapshot,
        rank: Option<&SharedCommunicator>,
        report: &Report<'_>,
    ) -> Result<TrainerState, Error> {
        let find = |folder: &Folder| folder.find(|file, all| take(file, tensors, all), report);
        let (state, values) = folder.map(find).transpose()?.unwrap_or_default();
        let mut pairs = tensors.iter().zip(&values);
        pairs.try_for_each(|((_, tensor), value)| overwrite(tensor, value))?;
        let Some(rank) = rank else { return Ok(state) };
        tensors.iter().try_for_each(|(_, tensor)| receive(rank, tensor))?;
        Ok(text::value_of_rank_0(&**rank, &state)?)
    }
}

impl Store for Checkpoints {
    fn flags(&self) -> &Checkpoints {
        self
    }
}
// ANCHOR_END: restore
