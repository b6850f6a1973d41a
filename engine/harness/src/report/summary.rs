//! The result of a run, as a line on the terminal and as a line of `--metrics`.

use std::fmt;

use serde::Serialize;

use super::seconds;
use crate::records::{EpochRecord, TrainOptions};

/// A run that is to be drawn.
#[derive(Debug)]
pub(super) struct FinishedRun {
    pub(super) name: String,
    pub(super) devices: String,
    pub(super) records: Vec<EpochRecord>,
}

/// The settings and the result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The run's name, as in the lines of its epochs.
    pub run: String,
    /// The data set's name.
    pub data: String,
    /// The number of training images and of test images.
    pub images: (usize, usize),
    /// The hyperparameters.
    pub options: TrainOptions,
    /// The element type of the layers. Weights have the same type, except that weights of bf16 layers are f32.
    pub dtype: String,
    /// The devices, in rank order.
    pub devices: Vec<String>,
    /// A note about the times, for example that devices shared a core.
    pub note: Option<String>,
    /// The method by which several devices share gradients. `None` for one device.
    pub method: Option<String>,
    /// The number of epochs that were trained. An interrupted epoch counts as a fraction.
    pub epochs_trained: f64,
    /// Whether Ctrl-C ended the run early.
    pub interrupted: bool,
    /// The accuracy on the test images at the end.
    pub test_accuracy: f64,
    /// The average training time of an epoch.
    pub seconds_per_epoch: f64,
    /// All 64 digits of the weights hash.
    pub weights_hash: String,
    /// The versions of the course and of candle.
    pub versions: Versions,
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

/// The version of candle that the workspace asks for.
const CANDLE: &str = "0.11.1";

/// The versions of the course and of candle.
#[derive(Clone, Debug, Serialize)]
pub struct Versions {
    course: &'static str,
    candle: &'static str,
}

impl Versions {
    /// The versions that this program was built from.
    pub fn of_this_binary() -> Self {
        Self { course: env!("CARGO_PKG_VERSION"), candle: CANDLE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_candle_is_the_one_that_is_built() {
        let workspace = include_str!("../../../../Cargo.toml");
        let asked_for = format!("candle-core = {{ version = \"={CANDLE}\"");
        assert!(workspace.contains(&asked_for), "{asked_for}");
    }
}
