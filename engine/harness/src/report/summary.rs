//! The end of a run: what it was, and what came out, as a line to read and as one of `--metrics`.

use std::fmt;

use serde::Serialize;

use super::seconds;
use crate::records::TrainOptions;

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

/// Versions of what computed a result.
#[derive(Clone, Debug, Serialize)]
pub struct Versions {
    course: &'static str,
    candle: &'static str,
}

impl Versions {
    /// The versions this binary was built from.
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
