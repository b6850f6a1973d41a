//! Compares runs from the same weights and with the same batches.

use std::fmt;

use devices::DevicePlan;
use harness::report::summary::Summary;
use ops::difference::largest_difference;
use scratch_data_parallel::Method;
use scratch_data_parallel::replicas::{check, verdict};
use scratch_data_parallel::train::Outcome;
use serde_json::{Value, json};

/// A finished run.
pub(crate) struct Run {
    pub(crate) plan: DevicePlan,
    pub(crate) method: Method,
    pub(crate) summary: Summary,
    pub(crate) outcome: Outcome,
}

/// The comparison of several devices with one device.
pub(crate) struct Comparison<'a> {
    /// One device, several devices, and one device with all cores.
    pub(crate) runs: &'a [Run],
    /// The largest relative difference between the weights of several devices and of one, after step 1.
    pub(crate) after_first_step: f64,
    /// The same at the end. `None` if the runs did not end at the same step.
    pub(crate) at_the_end: Option<f64>,
}

impl<'a> Comparison<'a> {
    /// Compares the first two runs. `None` if there are fewer.
    pub(crate) fn new(runs: &'a [Run]) -> candle_core::Result<Option<Self>> {
        let [one, several, ..] = runs else { return Ok(None) };
        let (one, several, together) = (&one.outcome, &several.outcome, end_together(one, several));
        let at_the_end = together.then(|| largest_difference(&several.weights, &one.weights));
        let after_first_step =
            largest_difference(&several.after_first_step, &one.after_first_step)?;
        Ok(Some(Self { runs, after_first_step, at_the_end: at_the_end.transpose()? }))
    }

    /// The speed-up over each run on one device, with the run.
    pub(crate) fn speed_ups(&self) -> impl Iterator<Item = (f64, &'a Summary)> {
        let several = self.runs[1].summary.seconds_per_epoch;
        let alone = self.runs.iter().map(|run| &run.summary).step_by(2);
        alone.map(move |one| (one.seconds_per_epoch / several, one))
    }

    /// The comparison as a line of `--metrics`. Without several runs, it has no numbers.
    pub(crate) fn line(comparison: Option<&Self>, replicas: &Run) -> Value {
        let speed_ups = comparison.into_iter().flat_map(Self::speed_ups).map(|(ratio, one)| {
            json!({ "over_run": one.run, "over": one.devices.join(", "), "ratio": ratio })
        });
        let difference = comparison.map(|Self { after_first_step, at_the_end, .. }| {
            json!({ "after_first_step": after_first_step, "at_the_end": at_the_end })
        });
        json!({
            "speed_ups": speed_ups.collect::<Vec<_>>(),
            "weight_difference": difference,
            "replicas_agree": check(&replicas.outcome.hashes).is_ok(),
            "replicas": replicas.outcome.hashes.len(),
        })
    }
}

/// Whether two runs ended at the same step.
pub(crate) fn end_together(one: &Run, other: &Run) -> bool {
    one.summary.epochs_trained == other.summary.epochs_trained
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An interrupted run may have no time.
        let timed = self.speed_ups().filter(|(ratio, _)| ratio.is_finite());
        let ratios = timed.map(|(ratio, one)| format!("{ratio:.2}× over {}", one.run));
        let ratios = ratios.collect::<Vec<_>>().join("; ");
        if !ratios.is_empty() {
            writeln!(f, "speed-up: {ratios}")?;
        }
        let at_the_end = match self.at_the_end {
            Some(at_the_end) => format!(", {} at the end", distance(at_the_end)),
            None => "; not compared at the end".to_owned(),
        };
        let first = distance(self.after_first_step);
        writeln!(f, "largest weight difference: {first} after step 1{at_the_end}")?;
        f.write_str(&verdict(&self.runs[1].outcome.hashes))
    }
}

/// Formats a difference: `0`, `1.3`, `2.0e-5`.
pub(crate) fn distance(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        _ if (0.1..1000.0).contains(&number) => format!("{number:.1}"),
        _ => format!("{number:.1e}"),
    }
}
