//! Compares runs from the same weights and with the same batches.

use std::fmt;

use harness::report::summary::Summary;
use ops::difference::largest_difference;
use scratch_data_parallel::replicas::{check, verdict};
use scratch_data_parallel::train::Outcome;
use serde::Serialize;

/// A finished run.
pub(crate) struct Run {
    pub(crate) summary: Summary,
    pub(crate) outcome: Outcome,
}

/// The comparison of several devices with one device.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    /// The speed-up over each run on one device.
    speed_ups: Vec<SpeedUp>,
    /// The difference between several devices and one. `None` when there was only one run.
    weight_difference: Option<WeightDifference>,
    /// Whether all replicas of the run on several devices ended with the same weights hash.
    replicas_agree: bool,
    /// The number of replicas.
    replicas: usize,
    #[serde(skip)]
    verdict: String,
}

#[derive(Debug, Serialize)]
struct SpeedUp {
    over: String,
    ratio: f64,
}

/// The largest relative difference over all tensors: max |a − b| / max |b| of a tensor.
#[derive(Debug, Serialize)]
struct WeightDifference {
    after_first_step: f64,
    /// `None` when an interrupt ended one of the runs early.
    at_the_end: Option<f64>,
}

impl Comparison {
    /// Compares the run on the most devices with each run on one device.
    pub(crate) fn new(runs: &[Run]) -> candle_core::Result<Self> {
        let Some(several) = runs.iter().max_by_key(|run| run.summary.devices.len()) else {
            candle_core::bail!("nothing to compare: there were no runs");
        };
        let others = || runs.iter().filter(|run| run.summary.devices.len() == 1);
        let speed_ups = others().map(|one| SpeedUp {
            over: one.summary.devices.join(", "),
            ratio: one.summary.seconds_per_epoch / several.summary.seconds_per_epoch,
        });
        let weight_difference = match others().next() {
            Some(one) if runs.len() > 1 => Some(WeightDifference {
                after_first_step: largest_difference(
                    &several.outcome.after_first_step,
                    &one.outcome.after_first_step,
                )?,
                at_the_end: (one.summary.epochs_trained == several.summary.epochs_trained)
                    .then(|| largest_difference(&several.outcome.weights, &one.outcome.weights))
                    .transpose()?,
            }),
            _ => None,
        };
        let hashes = &several.outcome.hashes;
        Ok(Self {
            speed_ups: if runs.len() > 1 { speed_ups.collect() } else { Vec::new() },
            weight_difference,
            replicas_agree: check(hashes).is_ok(),
            replicas: hashes.len(),
            verdict: verdict(hashes),
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(difference) = &self.weight_difference else {
            return Ok(());
        };
        let ratios: Vec<String> = self
            .speed_ups
            .iter()
            .map(|speed_up| format!("{:.2}× over [{}]", speed_up.ratio, speed_up.over))
            .collect();
        writeln!(f, "speed-up: {}", ratios.join(", "))?;
        write!(
            f,
            "largest weight difference from one device: {:.1e} after step 1",
            difference.after_first_step
        )?;
        match difference.at_the_end {
            Some(at_the_end) => writeln!(f, ", {at_the_end:.1e} at the end")?,
            None => writeln!(f, "; they did not end at the same step")?,
        }
        f.write_str(&self.verdict)
    }
}
