//! Compares runs from the same weights and with the same batches.

use std::fmt;

use devices::DevicePlan;
use harness::report::summary::Summary;
use ops::difference::largest_difference;
use scratch_data_parallel::Method;
use scratch_data_parallel::replicas::{check, verdict};
use scratch_data_parallel::train::Outcome;
use serde::Serialize;

use crate::conclusion::{Facts, distance};

/// The seconds of training below which times are not exact.
const SHORTEST: f64 = 2.0;

/// A finished run.
pub(crate) struct Run {
    pub(crate) plan: DevicePlan,
    pub(crate) method: Method,
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
    #[serde(skip)]
    conclusion: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SpeedUp {
    /// The name of the run on one device.
    over_run: String,
    /// The device of this run.
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
            over_run: one.summary.run.clone(),
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
        let mut comparison = Self {
            speed_ups: if runs.len() > 1 { speed_ups.collect() } else { Vec::new() },
            weight_difference,
            replicas_agree: check(hashes).is_ok(),
            replicas: hashes.len(),
            verdict: verdict(hashes),
            conclusion: Vec::new(),
        };
        comparison.conclusion = comparison.conclude(several, runs);
        Ok(comparison)
    }

    /// The sentences below the numbers. A single run has none.
    pub(crate) fn conclusion(&self) -> &[String] {
        &self.conclusion
    }

    fn conclude(&self, several: &Run, runs: &[Run]) -> Vec<String> {
        let Some(difference) = &self.weight_difference else { return Vec::new() };
        let facts = Facts {
            method: several.method,
            devices: several.plan.len(),
            f64: several.summary.dtype == "f64",
            slices: several.plan.is_of_slices(),
            shared: several.summary.shared,
            short: runs
                .iter()
                .any(|run| run.summary.seconds_per_epoch * run.summary.epochs_trained < SHORTEST),
            busy: runs.iter().any(|run| run.summary.busy.is_some()),
            speed_ups: self.speed_ups.iter().map(|speed_up| speed_up.ratio).collect(),
            after_first_step: difference.after_first_step,
            at_the_end: difference.at_the_end,
            same_bits: runs.iter().all(|run| run.outcome.hashes[0] == several.outcome.hashes[0]),
            same_bits_alone: runs
                .get(2)
                .filter(|all_cores| {
                    all_cores.summary.epochs_trained == runs[0].summary.epochs_trained
                })
                .map(|all_cores| all_cores.outcome.hashes == runs[0].outcome.hashes),
            replicas_agree: self.replicas_agree,
            accuracies: [runs[0].summary.test_accuracy, several.summary.test_accuracy],
            test_images: several.summary.images.1,
        };
        facts.conclusion()
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
            // An interrupted run may have no time.
            .filter(|speed_up| speed_up.ratio.is_finite())
            .map(|SpeedUp { ratio, over_run, .. }| format!("{ratio:.2}× over {over_run}"))
            .collect();
        if !ratios.is_empty() {
            writeln!(f, "speed-up: {}", ratios.join("; "))?;
        }
        let WeightDifference { after_first_step, at_the_end } = difference;
        let first = distance(*after_first_step);
        write!(f, "largest weight difference: {first} after step 1")?;
        match at_the_end {
            Some(at_the_end) => writeln!(f, ", {} at the end", distance(*at_the_end))?,
            None => writeln!(f, "; not compared at the end")?,
        }
        f.write_str(&self.verdict)
    }
}
