//! What is written down of predictions, and of what came of them: the lines of `--metrics`, read again by who draws
//! them.

use std::fmt;

use harness::report::counted;
use serde::{Deserialize, Serialize};

use crate::compute::{Line, Measured};
use crate::link::Link;
use crate::step::Predicted;
use crate::training::Sum;

/// What is known of a model on devices of one number, before any of its training was run on them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Calibration {
    /// Such as `ResNet-18 of width 16`.
    pub model: String,
    /// Samples in a batch, over all devices.
    pub batch_size: usize,
    /// The devices' names.
    pub devices: Vec<String>,
    /// What is to know before believing these times.
    pub note: Option<String>,
    /// What was measured with two numbers of samples.
    pub measured: [Measured; 2],
    /// The line through both.
    pub line: Line,
    /// In memory; none where there is one device.
    pub memory: Option<Link>,
    /// Slowed down on purpose.
    pub slow: Option<Link>,
}

/// How devices add their gradients up.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct How {
    /// Whether over the link that is slow on purpose.
    pub slow: bool,
    /// By which algorithm, and when.
    #[serde(flatten)]
    pub sum: Sum,
}

/// A step of training: how long it was to take, and how long it took.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Step {
    /// Such as `ResNet-18 of width 16`.
    pub model: String,
    /// Samples in a batch, over all devices.
    pub batch_size: usize,
    /// How many devices.
    pub devices: usize,
    /// How they add their gradients up; none on one device.
    pub how: Option<How>,
    /// In seconds.
    pub predicted: Predicted,
    /// In seconds.
    pub measured: f64,
}

impl Calibration {
    /// What was measured of the link.
    pub fn link(&self, slow: bool) -> Option<Link> {
        if slow { self.slow } else { self.memory }
    }
}

impl Step {
    /// By how much the prediction is above what was measured, as a part of that.
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
        // The names under which figures find it.
        assert_eq!(
            serde_json::to_value(how).unwrap(),
            json!({"slow": true, "way": "ring", "overlap": false})
        );
    }
}
