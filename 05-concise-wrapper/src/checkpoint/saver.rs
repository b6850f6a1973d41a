//! When checkpoints are read and written in the course of a run.

use std::cell::LazyCell;

use candle_core::Device;
use datasets::source::LoadedData;
use harness::records::{TrainOptions, TrainerState};
use harness::report::Report;
use harness::report::trace::COMPUTE;
use ops::weights_hash::WeightsHash;
use tracing::info_span;

use super::folder::Folder;
use super::header::Header;
use super::resume::{self, Expected, state};
use super::write::{table, write};
use super::{Checkpoints, Configuration};
use crate::ddp::alike;
use crate::optimiser::Extras;
use crate::optimiser::Sgd;
use crate::weights::Weights;
use crate::{Error, Model, Precision};

/// A run, as far as checkpoints are concerned.
pub(crate) struct Run<'a> {
    data: &'a LoadedData,
    checkpoints: Option<&'a Checkpoints>,
    /// Made when it is first asked for: a run of one device without checkpoints need not read all its images for their hash.
    pub(super) configuration: LazyCell<Configuration, Box<dyn FnOnce() -> Configuration + 'a>>,
    pub(super) batches_per_epoch: usize,
    pub(super) epochs: usize,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        checkpoints: Option<&'a Checkpoints>,
        data: &'a LoadedData,
        options: &'a TrainOptions,
        extras: &'a Extras,
        precision: Precision,
        batches_per_epoch: usize,
    ) -> Self {
        let about = checkpoints.map(|checkpoints| checkpoints.about.clone()).unwrap_or_default();
        let configuration =
            Box::new(move || Configuration::new(&about, data, options, extras, precision));
        let configuration = LazyCell::new(configuration as Box<dyn FnOnce() -> Configuration>);
        Self { data, checkpoints, configuration, batches_per_epoch, epochs: options.epochs }
    }

    /// Locks the folder, and puts the model and the optimiser where the run goes on; all ranks call this
    /// together.
    ///
    /// # Errors
    ///
    /// When the ranks were not started alike, when another run has the folder, when there is no checkpoint
    /// that can be used, or another rank stops or stalls.
    pub(crate) fn begin(
        self,
        model: &impl Model,
        sgd: &mut Sgd,
        report: &Report<'_>,
    ) -> Result<(Saver<'a>, TrainerState), Error> {
        if let Some(rank) = model.rank() {
            alike::compare(rank, &self.to_compare())?;
        }
        let at_the_beginning = TrainerState::default();
        let Some(Checkpoints { folder, resume, .. }) = self.checkpoints else {
            return Ok((Saver { run: self, folder: None }, at_the_beginning));
        };
        if let Some(rank) = model.rank()
            && !alike::are_replicas(rank, model.weights())?
        {
            return Err(super::Error::Parts.into());
        }
        let first = model.rank().is_none_or(|rank| rank.rank() == 0);
        let folder = if first { Some(Folder::open(folder)?) } else { None };
        let Some(resume) = *resume else {
            folder.as_ref().map_or(Ok(()), Folder::check_empty)?;
            return Ok((Saver { run: self, folder }, at_the_beginning));
        };
        sgd.begin(model.weights())?;
        let tensors = table(&state(model.weights(), sgd));
        let find = |folder| {
            let expected = Expected {
                configuration: &self.configuration,
                tensors: &tensors,
                batches_per_epoch: self.batches_per_epoch,
                epochs: self.epochs,
            };
            resume::find(folder, resume, &expected, report)
        };
        let found = folder.as_ref().map(find).transpose()?;
        let position = resume::restore(found, model, sgd, self.batches_per_epoch)?;
        Ok((Saver { run: self, folder }, position))
    }

    /// What has to be the same on all ranks: one that begins anew must not meet others that go on.
    fn to_compare(&self) -> Vec<(String, String)> {
        let checkpoints = match self.checkpoints {
            Some(Checkpoints { every, resume, .. }) => format!("every {every}, resume {resume:?}"),
            None => "none".to_owned(),
        };
        let entry = |what: &str, value| (what.to_owned(), value);
        // Not the epochs: a rank that leaves the loop early is named by the ranks that wait for it.
        let mut all = vec![entry("checkpoints", checkpoints)];
        all.extend_from_slice(self.configuration.entries());
        // Ranks share the test images, so all have to have the same; a run that goes on may be tested by others.
        let Self { data: LoadedData { test, .. }, .. } = self;
        all.push(entry("test images", test.len().to_string()));
        all.push(entry("test images with hash", test.fingerprint().to_owned()));
        all
    }
}

/// Writes the checkpoints of a run.
pub(crate) struct Saver<'a> {
    run: Run<'a>,
    /// `None` on ranks other than 0, and where no checkpoints are wanted.
    folder: Option<Folder>,
}

impl Saver<'_> {
    /// Writes a checkpoint, if it is time, and removes those that are too old.
    ///
    /// # Errors
    ///
    /// When one cannot be written or removed: the message names it.
    pub(crate) fn after_step(
        &self,
        position: &TrainerState,
        weights: &Weights,
        sgd: &Sgd,
    ) -> Result<(), Error> {
        let Run { checkpoints, configuration, batches_per_epoch, epochs, .. } = &self.run;
        let (Some(folder), Some(checkpoints)) = (&self.folder, checkpoints) else { return Ok(()) };
        let step = position.steps(*batches_per_epoch);
        let last = position.epoch() == *epochs && position.batches == *batches_per_epoch;
        let due = step.is_multiple_of(checkpoints.every) || last || position.sums.interrupts > 0;
        if !due {
            return Ok(());
        }
        let _span = info_span!(target: COMPUTE, "checkpoint").entered();
        let mut tensors = state(weights, sgd);
        for (_, tensor) in &mut tensors {
            *tensor = tensor.to_device(&Device::Cpu)?;
        }
        let hash = WeightsHash::new(&tensors)?;
        let header = Header::new(position, *batches_per_epoch, configuration, hash);
        write(&folder.file(step), &header, &tensors)?;
        Ok(folder.prune(checkpoints.keep)?)
    }
}
