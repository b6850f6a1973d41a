//! The result of a run, as a line on the terminal and as a line of `--metrics`.

use std::fmt;

use serde::Serialize;

use super::{columns, listed, seconds, wrapped};
use crate::records::{EpochRecord, TrainOptions, Unit};
use crate::statistics::chance;

#[derive(Debug)]
pub(crate) struct FinishedRun {
    pub(super) summary: Summary,
    pub(super) records: Vec<EpochRecord>,
}

/// The settings and the result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The run's name, as in the lines of its epochs.
    pub run: String,
    /// The data set's name.
    pub data: String,
    /// The number of training images and of test images. Of a text, the number of tokens.
    pub images: (usize, usize),
    /// The samples that the run counts.
    #[serde(skip)]
    pub unit: Unit,
    /// The hyperparameters.
    pub options: TrainOptions,
    /// The element type of the layers. Weights have the same type, except that weights of bf16 layers are f32.
    pub dtype: String,
    /// The devices, in rank order.
    pub devices: Vec<String>,
    /// A note about the times, for example that devices shared a core.
    pub note: Option<String>,
    /// Whether devices shared a core or a GPU.
    pub shared: bool,
    /// A note that other programs used the cores during the run.
    pub busy: Option<String>,
    /// The method by which several devices share gradients. `None` for one device.
    pub method: Option<String>,
    /// The number of epochs that were trained. An interrupted epoch counts as a fraction.
    pub epochs_trained: f64,
    /// Whether Ctrl-C ended the run early.
    pub interrupted: bool,
    /// The accuracy on the test images at the end.
    pub test_accuracy: f64,
    /// The accuracy of guessing.
    #[serde(skip)]
    pub guessing: f64,
    /// The average training time of an epoch.
    pub seconds_per_epoch: f64,
    /// All 64 digits of the weights hash.
    pub weights_hash: String,
    /// The versions of the course and of candle.
    pub versions: Versions,
}

impl Summary {
    /// Whether the run ended with a test accuracy that guessing does not explain.
    pub fn has_learned(&self) -> bool {
        self.test_accuracy > self.guessing + chance(self.guessing, self.images.1)
    }
}

impl fmt::Display for Summary {
    /// `one device: test acc 0.84, 2.8 s/epoch, weights 3f9c0a12`, and below it the devices: `  on [cpu:0 (1 core)]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = format!(
            "{}: test acc {}, {} s/epoch, weights {}",
            self.run,
            super::accuracy(self.test_accuracy),
            seconds(self.seconds_per_epoch),
            &self.weights_hash[..8]
        );
        let mut devices = format!("  on [{}]", listed(&self.devices));
        if self.interrupted {
            let Self { epochs_trained, options: TrainOptions { epochs, .. }, .. } = self;
            devices += &format!(", interrupted after {epochs_trained:.2} of {epochs} epochs");
        }
        let busy = self.busy.iter().map(|note| format!("\n  note: {note}")).collect::<String>();
        f.write_str(&wrapped(&format!("{result}\n{devices}{busy}"), columns()))
    }
}

/// The versions of the course and of candle that this program was built from.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Versions {
    course: &'static str,
    candle: &'static str,
}

impl Versions {
    /// The versions of this program.
    pub fn of_this_binary() -> Self {
        Self { course: env!("CARGO_PKG_VERSION"), candle: "0.11.1" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_candle_is_the_one_that_is_built() {
        let workspace = include_str!("../../../../Cargo.toml");
        let asked_for =
            format!("candle-core = {{ version = \"={}\"", Versions::of_this_binary().candle);
        assert!(workspace.contains(&asked_for), "{asked_for}");
    }
}
