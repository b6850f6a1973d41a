//! Going on from a checkpoint: which one, and the same one on all ranks.

use std::path::{Path, PathBuf};

use candle_core::Tensor;
use harness::records::TrainerState;
use harness::report::Report;
use ops::weights_hash::WeightsHash;

use super::folder::Folder;
use super::header::{Header, Table};
use super::read::Checkpoint;
use super::{Configuration, Error, Resume};
use crate::ddp::{alike, receive};
use crate::optimizer::Sgd;
use crate::weights::{Named, Weights};
use crate::{Model, text};

/// Velocities are named like their parameters, behind this.
const VELOCITY: &str = "velocity/";

/// Everything that a step changes, by name: parameters, buffers, velocities. They share the memory of the
/// network's and the optimiser's.
pub(super) fn state(weights: &Weights, sgd: &Sgd) -> Vec<(String, Tensor)> {
    let values = weights.iter().map(|Named { name, tensor }| (name.clone(), tensor.detach()));
    let velocities = sgd.velocities(weights).into_iter();
    let velocities = velocities.map(|(name, tensor)| (format!("{VELOCITY}{name}"), tensor));
    values.chain(velocities).collect()
}

/// What a checkpoint has to fit.
pub(super) struct Expected<'a> {
    pub(super) configuration: &'a Configuration,
    pub(super) tensors: &'a Table,
    pub(super) batches_per_epoch: usize,
    pub(super) epochs: usize,
}

/// What rank 0 has read.
pub(super) struct Found {
    header: Header,
    tensors: Vec<(String, Tensor)>,
}

/// Rank 0's part: finds a checkpoint that fits, and says which.
///
/// # Errors
///
/// When there is none, or the one that was asked for cannot be used.
pub(super) fn find(
    folder: &Folder,
    resume: Resume,
    expected: &Expected<'_>,
    report: &Report<'_>,
) -> Result<Found, Error> {
    let checkpoints = folder.checkpoints()?;
    let count = checkpoints.len();
    let mut damaged: Vec<(PathBuf, Error)> = Vec::new();
    for (_, path) in checkpoints.into_iter().rev() {
        match read(&path, expected) {
            Ok(found) => {
                for (path, error) in damaged {
                    let aside = folder.set_aside(&path)?;
                    report.note(format_args!("{error}; it is now {}", aside.display()));
                }
                let Header { step, epoch, batches, .. } = &found.header;
                report.note(format_args!(
                    "going on after step {step}, which is {batches} of {} in epoch {epoch}, from {}",
                    expected.batches_per_epoch,
                    path.display()
                ));
                return Ok(found);
            }
            Err(error) if !error.is_damage() => return Err(error),
            Err(error) if resume == Resume::Newest => {
                return Err(Error::NewestDamaged(Box::new(error)));
            }
            Err(error) => damaged.push((path, error)),
        }
    }
    let folder = folder.path().to_owned();
    match damaged.pop() {
        Some((_, oldest)) => Err(Error::NoneValid { folder, count, oldest: Box::new(oldest) }),
        None => Err(Error::None { folder }),
    }
}

fn read(path: &Path, expected: &Expected<'_>) -> Result<Found, Error> {
    let checkpoint = Checkpoint::open(path)?;
    checkpoint.fits(expected.configuration, expected.tensors)?;
    let header = checkpoint.header.clone();
    let damaged = |reason| Error::Damaged { path: path.to_owned(), reason };
    header.position(expected.batches_per_epoch).map_err(damaged)?;
    if header.epoch > expected.epochs {
        let (epoch, epochs) = (header.epoch, expected.epochs);
        return Err(Error::Beyond { path: path.to_owned(), epoch, epochs });
    }
    Ok(Found { header, tensors: checkpoint.tensors()? })
}

/// Puts what rank 0 has found into the model and the optimiser, on all ranks; all call this together, with
/// an optimiser that has its velocities, and rank 0 alone has `found` something. Returns where the run goes
/// on.
///
/// # Errors
///
/// When another rank stops or stalls, or, which would be a mistake of ours, has another state afterwards.
pub(super) fn restore(
    found: Option<Found>,
    model: &impl Model,
    sgd: &mut Sgd,
    batches_per_epoch: usize,
) -> Result<TrainerState, crate::Error> {
    let weights = model.weights();
    let mut header = None;
    if let Some(Found { header: of_file, tensors }) = found {
        let (velocities, values): (Vec<_>, Vec<_>) =
            tensors.into_iter().partition(|(name, _)| name.starts_with(VELOCITY));
        weights.set(&values)?;
        let of_parameter =
            |(name, tensor): (String, Tensor)| (name[VELOCITY.len()..].to_owned(), tensor);
        sgd.set_velocities(weights, &velocities.into_iter().map(of_parameter).collect::<Vec<_>>())?;
        header = Some(of_file);
    }
    if let Some(rank) = model.rank() {
        header = text::value_of_rank_0(&**rank, &header)?;
        let state = state(weights, sgd);
        state.iter().try_for_each(|(_, tensor)| receive(rank, tensor))?;
        let hash = WeightsHash::new(&state)?;
        let step = header.as_ref().map_or(0, |header| header.step);
        let mine = [("step", step.to_string()), ("state", format!("{hash:?}"))];
        alike::compare(rank, &mine.map(|(what, value)| (what.to_owned(), value)))?;
    }
    let header = header.ok_or_else(|| candle_core::Error::msg("rank 0 has found no checkpoint"))?;
    Ok(header.position(batches_per_epoch).map_err(candle_core::Error::msg)?)
}
