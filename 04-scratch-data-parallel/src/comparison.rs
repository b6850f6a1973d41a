//! Compares runs from the same weights and with the same batches.

use std::fmt;

use devices::DevicePlan;
use harness::report::summary::Summary;
use harness::verdict::{self, Doubt};
use ops::difference::largest_difference;
use scratch_data_parallel::train::Outcome;
use scratch_data_parallel::{Method, replicas};
use serde::Serialize;

/// A finished run.
pub(crate) struct Run {
    pub(crate) plan: DevicePlan,
    pub(crate) method: Method,
    pub(crate) summary: Summary,
    pub(crate) outcome: Outcome,
}

/// The comparison of several devices with one device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    /// The speed-up over one device, and over one device with all cores.
    pub(crate) speed_ups: Vec<SpeedUp>,
    /// The difference between several devices and one. `None` when there was only one run.
    pub(crate) weight_difference: Option<WeightDifference>,
    /// Whether all replicas of the run on several devices ended with the same weights hash.
    pub(crate) replicas_agree: bool,
    /// The number of replicas.
    pub(crate) replicas: usize,
    #[serde(skip)]
    pub(crate) method: Method,
    /// The run on one device and the run on several. The same run twice when there was only one.
    #[serde(skip)]
    pub(crate) runs: [Summary; 2],
    /// Whether the replicas agree, in words.
    #[serde(skip)]
    pub(crate) verdict: String,
    #[serde(skip)]
    pub(crate) doubts: Vec<Doubt>,
    /// The largest difference after step 1 that rounding explains.
    #[serde(skip)]
    pub(crate) rounding: f64,
    /// Whether all runs ended with the same bits.
    #[serde(skip)]
    pub(crate) same_bits: bool,
    /// Whether one device ended with the same bits with few and with all cores. `None` if only one of the two was trained.
    #[serde(skip)]
    pub(crate) same_bits_alone: Option<bool>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct SpeedUp {
    /// The name of the run on one device.
    pub(crate) over_run: String,
    /// The device of this run.
    pub(crate) over: String,
    pub(crate) ratio: f64,
}

/// The largest relative difference over all tensors: max |a − b| / max |b| of a tensor.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct WeightDifference {
    pub(crate) after_first_step: f64,
    /// `None` when an interrupt ended one of the runs early.
    pub(crate) at_the_end: Option<f64>,
}

impl Comparison {
    /// Compares the run on several devices with the first run and the third run, which are on one device.
    pub(crate) fn new(runs: &[Run]) -> candle_core::Result<Self> {
        let (Some(one), Some(several)) = (runs.first(), runs.get(1).or(runs.first())) else {
            candle_core::bail!("nothing to compare: there were no runs");
        };
        let ended_together =
            |other: &Run| other.summary.epochs_trained == one.summary.epochs_trained;
        let alone = runs.iter().filter(|run| run.summary.devices.len() == 1 && runs.len() > 1);
        let speed_ups: Vec<_> = alone
            .map(|one| SpeedUp {
                over_run: one.summary.run.clone(),
                over: one.summary.devices.join(", "),
                ratio: one.summary.seconds_per_epoch / several.summary.seconds_per_epoch,
            })
            .collect();
        let difference = || {
            let [mine, others] = [several, one].map(|run| &run.outcome);
            let at_the_end = || largest_difference(&mine.weights, &others.weights);
            Ok::<_, candle_core::Error>(WeightDifference {
                after_first_step: largest_difference(
                    &mine.after_first_step,
                    &others.after_first_step,
                )?,
                at_the_end: ended_together(several).then(at_the_end).transpose()?,
            })
        };
        let mut doubts = Doubt::about(runs.iter().map(|run| &run.summary));
        let devices = several.plan.len();
        let ratio = speed_ups.first().map_or(f64::NAN, |it| it.ratio);
        doubts.extend(Doubt::of_speed_up("data parallel", ratio, devices, 0.0));
        let hashes = |run: &Run| run.outcome.hashes.clone();
        Ok(Self {
            speed_ups,
            weight_difference: (runs.len() > 1).then(difference).transpose()?,
            replicas_agree: replicas::check(&hashes(several)).is_ok(),
            replicas: devices,
            verdict: replicas::verdict(&hashes(several)),
            method: several.method,
            runs: [one, several].map(|run| run.summary.clone()),
            doubts,
            rounding: verdict::rounding(&several.summary.dtype, several.plan.is_of_slices()),
            same_bits: runs.iter().all(|run| hashes(run)[0] == hashes(several)[0]),
            same_bits_alone: (runs.get(2).filter(|it| ended_together(it)))
                .map(|all_cores| hashes(all_cores) == hashes(one)),
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(WeightDifference { after_first_step, at_the_end }) = self.weight_difference else {
            return Ok(());
        };
        // An interrupted run may have no time.
        let timed = self.speed_ups.iter().filter(|it| it.ratio.is_finite());
        let ratios = timed.map(|it| format!("{:.2}× over {}", it.ratio, it.over_run));
        let ratios: Vec<String> = ratios.collect();
        if !ratios.is_empty() {
            writeln!(f, "speed-up: {}", ratios.join("; "))?;
        }
        let at_the_end = match at_the_end {
            Some(at_the_end) => format!(", {} at the end", distance(at_the_end)),
            None => "; not compared at the end".to_owned(),
        };
        let first = distance(after_first_step);
        writeln!(f, "largest weight difference: {first} after step 1{at_the_end}")?;
        f.write_str(&self.verdict)
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
