//! What the runs say together: times, bubbles, memory, and how far the weights are apart.

use concise_wrapper::replicas::verdict;
use harness::report::{line, seconds};
use model_parallel::held::Held;
use ops::difference::largest_difference;

use crate::outcome::Outcome;

/// The runs, and how far each is from one device.
pub(crate) struct Table<'a> {
    outcomes: &'a [Outcome<'a>],
    /// After the first step and at the end; `None` of a run that nothing is compared with, and at the end where
    /// one of the two was interrupted before the other.
    differences: Vec<Option<(f64, Option<f64>)>>,
}

/// What the lower table is about.
const HELD: &str = "MB held by a device";

/// A megabyte.
const MEGABYTE: f64 = 1e6;

impl<'a> Table<'a> {
    /// Compares every run with the one device that took batches in the same pieces, if there is one.
    pub(crate) fn new(outcomes: &'a [Outcome<'a>]) -> anyhow::Result<Self> {
        let has_norms = outcomes.iter().filter(|outcome| outcome.way.is_alone()).count() > 1;
        let difference = |outcome: &Outcome<'_>| {
            let same = |other: &&Outcome<'_>| {
                let (other, way) = (other.way, outcome.way);
                other.is_alone() && (other.shards() == way.shards() || !has_norms)
            };
            let reference = outcomes.iter().find(same);
            let Some(reference) = reference.filter(|_| !outcome.way.is_alone()) else {
                return Ok(None);
            };
            let first = largest_difference(&outcome.after_first_step, &reference.after_first_step)?;
            let last = (outcome.summary.epochs_trained == reference.summary.epochs_trained)
                .then(|| largest_difference(&outcome.weights, &reference.weights));
            Ok::<_, candle_core::Error>(Some((first, last.transpose()?)))
        };
        let differences = outcomes.iter().map(difference).collect::<Result<_, _>>()?;
        Ok(Self { outcomes, differences })
    }

    /// Prints it.
    pub(crate) fn tell(&self) -> anyhow::Result<()> {
        self.times()?;
        self.memory()?;
        line("")?;
        for outcome in self.outcomes {
            line(&outcome.summary)?;
        }
        for Outcome { summary, replicas, .. } in self.outcomes {
            if replicas.len() > 1 {
                line(format_args!("{}: {}", summary.run, verdict(replicas)))?;
            }
        }
        Ok(())
    }

    /// The width of the runs' names.
    fn width(&self) -> usize {
        let names = self.outcomes.iter().map(|outcome| outcome.summary.run.chars().count());
        names.max().unwrap_or(0).max(HELD.len())
    }

    fn times(&self) -> anyhow::Result<()> {
        let width = self.width();
        line(format_args!(
            "\n{:width$}  {:>8}  {:>8}  {:>19}  {:>24}",
            "", "", "", "bubble", "largest difference"
        ))?;
        line(format_args!(
            "{:width$}  {:>8}  {:>8}  {:>9}  {:>8}  {:>12}  {:>10}  weights",
            "", "s/step", "speed-up", "predicted", "measured", "after 1 step", "at the end"
        ))?;
        let one = self.outcomes.iter().find(|outcome| outcome.way.is_alone());
        for (outcome, apart) in self.outcomes.iter().zip(&self.differences) {
            let Outcome { summary, seconds_per_step, stages, .. } = outcome;
            let none = || "–".to_owned();
            let speed_up = one.map_or_else(none, |one| {
                format!("{:.2}×", one.seconds_per_step / seconds_per_step)
            });
            let percent = |bubble: f64| format!("{:.0} %", bubble * 100.0);
            let predicted = stages.as_ref().map_or_else(none, |s| percent(s.predicted_bubble));
            let measured = stages.as_ref().map_or_else(none, |s| percent(s.measured_bubble));
            let first = apart.map_or_else(none, |(first, _)| format!("{first:.1e}"));
            let last = apart.and_then(|(_, last)| last);
            let last = last.map_or_else(none, |last| format!("{last:.1e}"));
            line(format_args!(
                "{:width$}  {:>8}  {speed_up:>8}  {predicted:>9}  {measured:>8}  {first:>12}  {last:>10}  {}",
                summary.run,
                seconds(*seconds_per_step),
                &summary.weights_hash[..8],
            ))?;
        }
        Ok(())
    }

    fn memory(&self) -> anyhow::Result<()> {
        let width = self.width();
        line(format_args!(
            "\n{:width$}  {:>6}  {:>10}  {:>9}  {:>9}  {:>11}  {:>6}  {:>7}",
            HELD,
            "device",
            "parameters",
            "gradients",
            "optimiser",
            "activations",
            "in all",
            "alive"
        ))?;
        for outcome in self.outcomes {
            for (device, held) in outcome.held.iter().enumerate() {
                let name = if device == 0 { outcome.summary.run.as_str() } else { "" };
                let Held { parameters, gradients, optimiser, activations } = *held;
                let mb = |bytes: usize| format!("{:.1}", bytes as f64 / MEGABYTE);
                line(format_args!(
                    "{name:width$}  {device:>6}  {:>10}  {:>9}  {:>9}  {:>11}  {:>6}  {:>7}",
                    mb(parameters),
                    mb(gradients),
                    mb(optimiser),
                    mb(activations),
                    mb(held.total()),
                    alive(outcome, device),
                ))?;
            }
        }
        Ok(())
    }
}

/// `2 of 8`: how many micro-batches a stage keeps, as its schedule says.
fn alive(outcome: &Outcome<'_>, device: usize) -> String {
    let Some(stages) = &outcome.stages else { return "–".to_owned() };
    // Replicas come one after the other, with all stages of each.
    let of_stage = stages.alive[device % stages.alive.len()];
    format!("{of_stage} of {}", stages.micro_batches)
}
