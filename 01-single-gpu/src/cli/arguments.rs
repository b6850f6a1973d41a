//! The flags that the stages share, and the checks that need more than one of them.

use std::num::NonZeroUsize;

use candle_core::DType;
use clap::{Args, ValueEnum};

use super::{DataArguments, ReportArguments, UsageError};
use crate::data::source::LoadedData;
use crate::device::{DeviceKind, DevicePlan, MAX_DEVICES};
use crate::report::outputs::Outputs;
use crate::report::{counted, thousands};
use crate::train::TrainOptions;

/// The most images that can be asked for: the limit of the file format's reader.
const MAX_IMAGES: u64 = crate::data::idx::MAX_COUNT as u64;

/// Flags that choose devices.
#[derive(Args, Clone, Copy, Debug)]
pub struct DeviceArguments {
    /// What to run on
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto)]
    pub device: DeviceKind,

    /// CPU cores of each device, when devices are slices of the CPU [default: the cores, shared evenly]
    #[arg(long, value_name = "T")]
    pub threads_per_device: Option<NonZeroUsize>,
}

impl DeviceArguments {
    /// The plan for `devices` devices.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] when this machine cannot have them.
    pub fn plan(&self, devices: usize) -> Result<DevicePlan, UsageError> {
        DevicePlan::new(self.device, devices, self.threads_per_device).map_err(UsageError::new)
    }

    /// The plan for one device that is like each of `several`: the same kind, with as many cores.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Self::plan).
    pub fn plan_one_of(&self, several: &DevicePlan) -> Result<DevicePlan, UsageError> {
        Self { threads_per_device: several.threads_per_device(), ..*self }.plan(1)
    }

    /// Parses a number of devices.
    ///
    /// # Errors
    ///
    /// What would be right, when it is none.
    pub fn parse_devices(argument: &str) -> Result<usize, String> {
        match argument.parse() {
            Ok(devices) if (1..=MAX_DEVICES).contains(&devices) => Ok(devices),
            _ => Err(format!("a run has 1 to {MAX_DEVICES} devices")),
        }
    }
}

/// Flags that choose several devices.
#[derive(Args, Clone, Copy, Debug)]
pub struct SeveralDevices {
    /// Which devices.
    #[command(flatten)]
    pub each: DeviceArguments,

    /// Number of devices
    #[arg(long = "devices", default_value_t = Self::DEFAULT, value_name = "K",
          value_parser = DeviceArguments::parse_devices)]
    pub count: usize,
}

impl SeveralDevices {
    /// So many, unless another number is asked for.
    pub const DEFAULT: usize = 2;

    /// The plan for all of them.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] when this machine cannot have them.
    pub fn plan(&self) -> Result<DevicePlan, UsageError> {
        self.each.plan(self.count)
    }
}

/// The element type of weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ElementType {
    /// Single precision: seven digits.
    F32,
    /// Double precision: sixteen digits, to see that differences are rounding and nothing else.
    F64,
}

impl From<ElementType> for DType {
    fn from(element_type: ElementType) -> Self {
        match element_type {
            ElementType::F32 => Self::F32,
            ElementType::F64 => Self::F64,
        }
    }
}

/// Flags that say what is trained, and how.
#[derive(Args, Clone, Debug)]
pub struct TrainArguments {
    #[command(flatten)]
    data: DataArguments,

    /// Use only the first N training images
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_IMAGES))]
    pub train_size: Option<u64>,

    /// Use only the first N test images
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_IMAGES))]
    pub test_size: Option<u64>,

    /// Passes over the training images
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub epochs: u32,

    /// Samples in a batch, over all devices
    #[arg(long, default_value_t = 256, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=MAX_IMAGES))]
    pub batch_size: u64,

    /// Learning rate
    #[arg(long, default_value_t = 0.2, value_name = "RATE", value_parser = parse_learning_rate,
          allow_negative_numbers = true)]
    pub lr: f64,

    /// Decides initial weights and shuffles
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Element type of weights and activations
    #[arg(long, value_enum, default_value_t = ElementType::F32)]
    pub dtype: ElementType,

    /// What the run leaves behind.
    #[command(flatten)]
    pub reports: ReportArguments,
}

/// Everything a training run needs, loaded and checked.
#[derive(Debug)]
pub struct TrainSetup {
    /// Images and labels.
    pub data: LoadedData,
    /// How to train.
    pub options: TrainOptions,
    /// The element type of weights and activations.
    pub dtype: DType,
    /// What the run leaves behind.
    pub outputs: Outputs,
}

impl TrainSetup {
    /// One line that says what is about to be trained: `model` on which data, and how.
    pub fn headline(&self, model: &str) -> String {
        let TrainOptions { epochs, batch_size, learning_rate, seed } = self.options;
        format!(
            "{model} on {}: {} training and {} test images, batch {batch_size}, lr {learning_rate}, \
             {}, seed {seed}",
            self.data.name,
            thousands(self.data.train.len()),
            thousands(self.data.test.len()),
            counted(epochs, "epoch"),
        )
    }
}

impl TrainArguments {
    /// Checks the flags against each other and against the machine, then loads the data.
    ///
    /// # Errors
    ///
    /// A [`UsageError`] for flags that make no sense; another error for a malformed data file.
    pub fn prepare(&self, devices: usize) -> anyhow::Result<TrainSetup> {
        if self.batch_size < devices as u64 {
            return Err(UsageError::new(format_args!(
                "batch size {} cannot be cut into {devices} shards: give every device at least one \
                 sample",
                self.batch_size
            ))
            .into());
        }
        self.reports.check(&[])?;
        let data = self.load(devices)?;
        let outputs = self.reports.open()?;
        Ok(TrainSetup {
            data,
            options: TrainOptions {
                epochs: self.epochs as usize,
                batch_size: usize::try_from(self.batch_size)?,
                learning_rate: self.lr,
                seed: self.seed,
            },
            dtype: self.dtype.into(),
            outputs,
        })
    }

    fn load(&self, devices: usize) -> anyhow::Result<LoadedData> {
        let too_few = |images: usize| {
            UsageError::new(format_args!(
                "{images} training images for {devices} devices: each needs at least one"
            ))
        };
        let limit = |size: Option<u64>| size.map(usize::try_from).transpose();
        let (train_size, test_size) = (limit(self.train_size)?, limit(self.test_size)?);
        // Refused before anything is downloaded, where that is possible.
        if let Some(images) = train_size.filter(|&images| images < devices) {
            return Err(too_few(images).into());
        }
        let data = self.data.load((train_size, test_size))?;
        if data.train.len() < devices {
            return Err(too_few(data.train.len()).into());
        }
        Ok(data)
    }
}

fn parse_learning_rate(argument: &str) -> Result<f64, String> {
    match argument.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("a learning rate is a positive number such as 0.2".to_owned()),
    }
}
