//! A prediction, what came of it, and how both are told.

use std::fmt;

use cost_model::step::Predicted;
use cost_model::training::Sum;
use serde::Serialize;

/// Images of the epoch that is spoken of: Fashion-MNIST's.
const EPOCH: usize = 60_000;

/// How a step is run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct How {
    /// Whether the link is slowed down on purpose.
    pub(crate) slow: bool,
    #[serde(flatten)]
    pub(crate) sum: Sum,
}

/// A prediction, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) model: String,
    pub(crate) batch_size: usize,
    pub(crate) devices: usize,
    /// `None` on one device.
    pub(crate) how: Option<How>,
    pub(crate) predicted: Predicted,
    pub(crate) measured: f64,
}

/// The columns of [`Row::in_table`].
pub(crate) const HEADING: &str = "  devices  link    all-reduce  overlap   compute  all-reduce      seen   predicted   measured    off     an epoch";

/// `3.21 ms`
fn milliseconds(seconds: f64) -> String {
    let thousandths = 1e3 * seconds;
    let digits = if thousandths < 9.995 { 2 } else { 1 };
    format!("{thousandths:.digits$} ms")
}

impl Row {
    /// By how much the prediction is above what was measured, as a part of that.
    pub(crate) fn error(&self) -> f64 {
        self.predicted.seconds / self.measured - 1.0
    }

    /// `memory`, or how slow the link is.
    fn link(&self) -> &'static str {
        match self.how {
            None => "",
            Some(How { slow: false, .. }) => "memory",
            Some(How { slow: true, .. }) => "slow",
        }
    }

    /// A line of the table below [`HEADING`].
    pub(crate) fn in_table(&self) -> String {
        let Predicted { seconds, compute, communication } = self.predicted;
        let (way, overlap) = match self.how {
            None => (String::new(), ""),
            Some(How { sum: Sum { way, overlap }, .. }) => {
                (way.to_string(), if overlap { "yes" } else { "no" })
            }
        };
        let steps = EPOCH.div_ceil(self.batch_size) as f64;
        let [both, seen] = match self.how {
            None => [String::new(), String::new()],
            Some(_) => [communication, self.predicted.exposed()].map(milliseconds),
        };
        format!(
            "  {:>7}  {:<6}  {way:<10}  {overlap:<7}{:>10}  {both:>10}{seen:>10}{:>12}{:>11}{:>+5.0} %{:>11}",
            self.devices,
            self.link(),
            milliseconds(compute),
            milliseconds(seconds),
            milliseconds(self.measured),
            100.0 * self.error(),
            format!("{:.1} s", seconds * steps),
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = if self.devices == 1 { "device" } else { "devices" };
        write!(f, "{} on {} {devices}", self.model, self.devices)?;
        match self.how {
            None => Ok(()),
            Some(How { slow, sum: Sum { way, overlap } }) => {
                let link = if slow { "the slow link" } else { "memory" };
                let overlap = if overlap { "with" } else { "without" };
                write!(f, ", {way} over {link}, {overlap} overlap")
            }
        }
    }
}
