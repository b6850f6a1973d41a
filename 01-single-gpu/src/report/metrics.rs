//! `--metrics FILE`: one JSON object a line, one line an epoch, and a summary at the end of each run.
//!
//! Every line is written as soon as it is known, so a run can be watched, and a run that is cut short
//! leaves whole lines only.

use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;

use crate::cli::TrainSetup;
use crate::device::DevicePlan;
use crate::report::seconds;
use crate::train::{EpochRecord, TrainOptions, epochs_trained, seconds_per_epoch};
use crate::weights_hash::WeightsHash;

/// A metrics file.
#[derive(Debug)]
pub struct Metrics {
    file: File,
}

#[derive(Serialize)]
struct Line<'a, T> {
    kind: &'a str,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Serialize)]
struct EpochLine<'a> {
    run: &'a str,
    #[serde(flatten)]
    record: &'a EpochRecord,
}

/// The end of a run: what it was, on what, and what came out.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The run's name, the same as in its epochs' lines.
    pub run: String,
    /// The data set's name.
    pub data: String,
    /// Training and test images.
    pub images: (usize, usize),
    /// How it was trained.
    pub options: TrainOptions,
    /// The element type that layers compute in, and of weights; but beside layers in bf16 those are f32.
    pub dtype: String,
    /// The devices, in rank order.
    pub devices: Vec<String>,
    /// What to know before believing its times.
    pub note: Option<String>,
    /// How the gradients of several devices became one update; `None` where that does not arise.
    pub method: Option<String>,
    /// How many epochs it was trained for; an epoch that was cut short counts for its part.
    pub epochs_trained: f64,
    /// Whether it ended before its time.
    pub interrupted: bool,
    /// Accuracy on the test images at the end.
    pub test_accuracy: f64,
    /// Average training time of an epoch.
    pub seconds_per_epoch: f64,
    /// All 64 digits of the weights hash.
    pub weights_hash: String,
    /// Versions of what computed it.
    pub versions: Versions,
}

impl Summary {
    /// Puts together what a run was with what came out of it.
    pub fn new(
        run: &str,
        setup: &TrainSetup,
        plan: &DevicePlan,
        records: &[EpochRecord],
        weights_hash: WeightsHash,
    ) -> Self {
        let epochs_trained = epochs_trained(records);
        Self {
            run: run.to_owned(),
            data: setup.data.name.clone(),
            images: (setup.data.train.len(), setup.data.test.len()),
            options: setup.options,
            dtype: setup.dtype.as_str().to_owned(),
            devices: plan.slots().iter().map(ToString::to_string).collect(),
            note: plan.note().map(str::to_owned),
            method: None,
            epochs_trained,
            interrupted: epochs_trained < setup.options.epochs as f64,
            test_accuracy: records.last().map_or(f64::NAN, |record| record.test_accuracy),
            seconds_per_epoch: seconds_per_epoch(records),
            weights_hash: format!("{weights_hash:?}"),
            versions: Versions::of_this_binary(),
        }
    }
}

impl fmt::Display for Summary {
    /// `synthetic garments: test acc 0.84, 2.8 s/epoch on [cpu:0 (1 core)], weights 3f9c0a12`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: test acc {:.3}, {} s/epoch on [{}], weights {}",
            self.data,
            self.test_accuracy,
            seconds(self.seconds_per_epoch),
            self.devices.join(", "),
            &self.weights_hash[..8]
        )?;
        if self.interrupted {
            let Self { epochs_trained, options: TrainOptions { epochs, .. }, .. } = self;
            write!(f, " (interrupted after {epochs_trained:.2} of {epochs} epochs)")?;
        }
        Ok(())
    }
}

/// Versions of what computed a result.
#[derive(Clone, Debug, Serialize)]
pub struct Versions {
    course: &'static str,
    candle: &'static str,
}

impl Versions {
    /// The versions this binary was built from.
    pub fn of_this_binary() -> Self {
        Self { course: env!("CARGO_PKG_VERSION"), candle: "0.11.1" }
    }
}

impl Metrics {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)? })
    }

    pub(super) fn epoch(&mut self, run: &str, record: &EpochRecord) -> io::Result<()> {
        self.write("epoch", &EpochLine { run, record })
    }

    /// Writes the end of a run.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        self.write("summary", summary)
    }

    /// Writes one line: an object whose field `kind` says what it is, and the fields of `content`.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write(&mut self, kind: &str, content: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(&Line { kind, content })?;
        bytes.push(b'\n');
        // One call, so that a line is there whole or not at all.
        self.file.write_all(&bytes)
    }
}
