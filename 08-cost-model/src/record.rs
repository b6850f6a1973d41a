//! The lines of `--metrics`: calibrations, predictions and measured steps. The book's figures read them.

use std::fmt;

use harness::report::counted;
use serde::{Deserialize, Serialize};

use crate::compute::{Line, Measured};
use crate::link::Link;
use crate::step::Predicted;
use crate::training::Sum;

/// The measured parts of a model's step on one number of devices.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Calibration {
    /// Such as `ResNet-18 of width 16`.
    pub model: String,
    /// Samples in a batch, over all devices.
    pub batch_size: usize,
    /// The devices' names.
    pub devices: Vec<String>,
    /// A note about the times, for example that devices share cores.
    pub note: Option<String>,
    /// Measurements with two numbers of samples.
    pub measured: [Measured; 2],
    /// The line through both measurements.
    pub line: Line,
    /// The link in memory. `None` for one device.
    pub memory: Option<Link>,
    /// The link that is slow on purpose. `None` for one device.
    pub slow: Option<Link>,
}

/// How devices sum their gradients.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct How {
    /// Whether the link is the one that is slow on purpose.
    pub slow: bool,
    /// The algorithm, and whether it overlaps with the backward pass.
    #[serde(flatten)]
    pub sum: Sum,
}

/// A step of training: the predicted and the measured time.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Step {
    /// Such as `ResNet-18 of width 16`.
    pub model: String,
    /// Samples in a batch, over all devices.
    pub batch_size: usize,
    /// The number of devices.
    pub devices: usize,
    /// The all-reduce of the gradients. `None` for one device.
    pub how: Option<How>,
    /// In seconds.
    pub predicted: Predicted,
    /// In seconds.
    pub measured: f64,
}

impl Calibration {
    /// The measured link.
    pub fn link(&self, slow: bool) -> Option<Link> {
        if slow { self.slow } else { self.memory }
    }
}

impl Step {
    /// The error of the prediction, as a part of the measured time. It is positive if the prediction is too long.
    pub fn error(&self) -> f64 {
        self.predicted.seconds / self.measured - 1.0
    }

    /// The step without its model: `2 devices, ring over the slow link, with overlap`.
    pub fn place(&self) -> String {
        let devices = counted(self.devices, "device");
        match self.how {
            None => devices,
            Some(How { slow, sum: Sum { way, overlap } }) => {
                let link = if slow { "over the slow link" } else { "in memory" };
                let overlap = if overlap { "with" } else { "without" };
                format!("{devices}, {way} {link}, {overlap} overlap")
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.model, self.place())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::all_reduce::Way;

    #[test]
    fn a_step_has_a_name_and_an_error() {
        let how = How { slow: true, sum: Sum { way: Way::Ring, overlap: false } };
        let predicted = Predicted { seconds: 1.5, compute: 1.0, communication: 0.5 };
        let step = |devices, how| Step {
            model: "A".into(),
            batch_size: 8,
            devices,
            how,
            predicted,
            measured: 2.0,
        };
        assert_eq!(step(2, None).error(), -0.25);
        assert_eq!(step(1, None).to_string(), "A on 1 device");
        let several = "A on 2 devices, ring over the slow link, without overlap";
        assert_eq!(step(2, Some(how)).to_string(), several);
        // The figures read these names.
        assert_eq!(
            serde_json::to_value(how).unwrap(),
            json!({"slow": true, "way": "ring", "overlap": false})
        );
    }
}
