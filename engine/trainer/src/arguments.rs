//! The flags of a training run, and the checks that need more than one flag.

use std::mem;
use std::sync::Mutex;

use anyhow::bail;
use candle_core::DType;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use datasets::source::LoadedData;
use datasets::{DataArguments, TextArguments};
use devices::DevicePlan;
use harness::cli::{ReportArguments, UsageError, before_a_run, number, whole};
use harness::load::Load;
use harness::lock::locked;
use harness::records::{EpochRecord, TrainOptions, epochs_trained, seconds_per_epoch};
use harness::report::outputs::Outputs;
use harness::report::summary::{Summary, Versions};
use harness::report::{self, counted, thousands};
use model_state::weights_hash::WeightsHash;

use crate::memory::{Footprint, RunSize};

/// The most images of a run: the limit of the file reader.
const MAX_IMAGES: u64 = harness::images::idx::MAX_COUNT as u64;

/// Returns the parser of a flag for an element type. Each name has a text for `--help`.
pub fn element_type(
    names: impl IntoIterator<Item = (&'static str, &'static str)>,
) -> impl TypedValueParser<Value = DType> {
    let value = |(name, help)| PossibleValue::new(name).help(help);
    PossibleValuesParser::new(names.into_iter().map(value)).try_map(|name| name.parse::<DType>())
}

/// The flags of a training run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "What to train")]
pub struct TrainArguments {
    /// Passes over the training images
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = whole::<usize>(1..=1_000_000))]
    pub epochs: usize,

    /// Samples in a batch, over all devices
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = whole::<usize>(1..=MAX_IMAGES))]
    pub batch_size: usize,

    /// Learning rate
    #[arg(long, default_value_t = 0.2, value_name = "RATE",
          value_parser = number(f64::MIN_POSITIVE..=f64::MAX, "a learning rate is a positive number such as 0.2"))]
    pub lr: f64,

    /// The images.
    #[command(flatten)]
    pub data: DataArguments,

    /// Use only the first N training images
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=MAX_IMAGES))]
    pub train_size: Option<usize>,

    /// Use only the first N test images
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = whole::<usize>(1..=MAX_IMAGES))]
    pub test_size: Option<usize>,

    /// Decides initial weights and shuffles
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,

    /// Element type: f32 or f64
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = element_type([
        ("f32", "Single precision: seven digits"),
        ("f64", "Double precision: sixteen digits. It shows whether a difference is rounding"),
    ]))]
    pub dtype: DType,
}

/// The loaded data and the checked flags of a training run.
#[derive(Debug)]
pub struct TrainSetup {
    /// The samples.
    pub data: LoadedData,
    /// The hyperparameters.
    pub options: TrainOptions,
    /// The element type of weights and activations.
    pub dtype: DType,
    /// The files of the run.
    pub outputs: Outputs,
    /// The load of the machine when the current run began.
    load: Mutex<Load>,
    /// A remark about the images, if others than the wanted ones are used.
    pub data_note: Option<String>,
}

impl TrainSetup {
    /// Describes the run in one line: the model, the data and the hyperparameters.
    pub fn headline(&self, model: &str) -> String {
        let TrainOptions { epochs, batch_size, learning_rate, seed } = self.options;
        let windows = |context| format!("windows of {}", counted(context, "byte"));
        let samples = self.data.train.context().map_or("images".to_owned(), windows);
        format!(
            "{model} on {}: {} training and {} test {samples}, batch {batch_size}, lr {}, {}, seed {seed}",
            self.data.name,
            thousands(self.data.train.len()),
            thousands(self.data.test.len()),
            report::number(learning_rate),
            counted(epochs, "epoch"),
        )
    }

    /// The remarks for the lines below the headline: about the images, and about the devices of a plan.
    pub fn notes<'a>(&'a self, plan: &'a DevicePlan) -> impl Iterator<Item = &'a str> {
        self.data_note.as_deref().into_iter().chain(plan.note())
    }

    /// Joins the settings and the results of the run that has just ended.
    pub fn summary(
        &self,
        run: &str,
        plan: &DevicePlan,
        records: &[EpochRecord],
        weights_hash: WeightsHash,
    ) -> Summary {
        let Self { data, options, .. } = self;
        let epochs_trained = epochs_trained(records);
        let load = mem::replace(&mut *locked(&self.load), Load::now());
        Summary {
            run: run.to_owned(),
            data: data.name.clone(),
            images: (data.train.labels().len(), data.test.labels().len()),
            unit: data.unit(),
            options: *options,
            dtype: self.dtype.as_str().to_owned(),
            devices: plan.slots().iter().map(ToString::to_string).collect(),
            note: plan.note().map(str::to_owned),
            shared: plan.shares_hardware(),
            busy: plan.busy_since(&load),
            method: None,
            epochs_trained,
            interrupted: epochs_trained < options.epochs as f64,
            test_accuracy: records.last().map_or(f64::NAN, |record| record.test_accuracy),
            guessing: data.guessing(),
            seconds_per_epoch: seconds_per_epoch(records),
            weights_hash: format!("{weights_hash:?}"),
            versions: Versions::of_this_binary(),
        }
    }
}

impl TrainArguments {
    /// Checks the flags and the memory of the run, then loads the images, or windows of so many bytes of a text. A batch has so many
    /// `shards`. Fails with a [`UsageError`] for flags that make no sense and for a run that cannot fit, and with another error
    /// for a malformed data file.
    pub fn prepare(
        &self,
        reports: &ReportArguments,
        devices: usize,
        shards: usize,
        footprint: &Footprint,
        text: Option<(&TextArguments, usize)>,
    ) -> anyhow::Result<TrainSetup> {
        let &Self { epochs, batch_size, lr: learning_rate, seed, dtype, .. } = self;
        if batch_size < shards {
            let advice = "give every device at least one sample";
            let refusal =
                format!("batch size {batch_size} cannot be cut into {shards} shards: {advice}");
            bail!(UsageError::new(refusal));
        }
        reports.check(&[], None)?;
        let sample = if text.is_some() { "training window" } else { "training image" };
        let are_enough = |samples: usize| match samples < devices {
            true => Err(UsageError::new(format_args!(
                "{} for {}: each device needs at least one, so raise --train-size or lower --devices",
                counted(samples, sample),
                counted(devices, "device")
            ))),
            false => Ok(()),
        };
        // If possible, refuse before anything is downloaded.
        self.train_size.map_or(Ok(()), are_enough)?;
        let (sizes, context) = ((self.train_size, self.test_size), text.map(|(_, it)| it));
        let fits = |samples| self.check_memory(footprint, samples, context);
        let activity = text.map_or_else(|| self.data.activity(), |_| "reading the text".to_owned());
        let load = || match text {
            Some((text, context)) => Ok((text.load(context, sizes, fits)?, None)),
            None => self.data.load(sizes, fits),
        };
        let (data, data_note) = before_a_run(&activity, load)??;
        are_enough(data.train.len())?;
        let options = TrainOptions { epochs, batch_size, learning_rate, seed };
        let (mut outputs, load) = (reports.open()?, Mutex::new(Load::now()));
        outputs.unit = data.unit();
        Ok(TrainSetup { data, options, dtype, outputs, load, data_note })
    }

    /// Refuses a run with so many training and test images, or windows of a text, that cannot fit into the machine's memory.
    pub fn check_memory(
        &self,
        footprint: &Footprint,
        images: (usize, usize),
        context: Option<usize>,
    ) -> Result<(), UsageError> {
        footprint.check(RunSize { batch_size: self.batch_size, images, context, dtype: self.dtype })
    }
}
