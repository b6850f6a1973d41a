//! Chapter 5b, `book/src/ch05b-batch-norm.md`: the cause of a lower accuracy on two devices.
//!
//! An experiment: the numbers of the answer against those that its metrics files give.

use crate::metrics::{Summary, compare, trainings};
use crate::prelude::*;
use harness::statistics::{deviation, mean};

/// The results of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The metrics files, or folders of them.
    pub metrics: &'static [&'static str],
    /// The accuracy that is lost with twice the batch.
    pub lost_by_batch: f64,
    /// The accuracy that is lost with twice the rate.
    pub lost_by_rate: f64,
    /// The accuracy that is lost with both.
    pub lost_by_both: f64,
    /// The accuracy that comes back if test images are normalised by the statistics of their own batch.
    pub regained_by_statistics: f64,
    /// The standard deviation over the seeds with the smaller batch and rate.
    pub spread: f64,
    /// The suspect that loses more accuracy if it changes alone.
    pub suspect: Suspect,
    /// Where the accuracy is lost with both.
    pub lost_in: LostIn,
    /// The steps of an epoch with twice the batch.
    pub steps: usize,
    /// The steps over which a running statistic averages.
    pub remembered: usize,
    /// The reason.
    pub reason: &'static str,
}

/// A setting that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// No answer yet.
    Unknown,
    /// The batch is larger.
    Batch,
    /// The rate is larger.
    Rate,
}

/// A part of a trained model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostIn {
    /// No answer yet.
    Unknown,
    /// The weights are worse.
    Weights,
    /// The running statistics do not fit the weights.
    Statistics,
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    each_suspect_changes_alone,
    every_setting_has_the_same_seeds,
    the_numbers_are_those_of_the_files,
    the_gap_is_larger_than_chance,
    the_suspect,
    the_place_of_the_loss,
    the_reason
];

const PROGRAM: &str =
    "cargo run --release -p concise-wrapper -- … --metrics FILE, as the exercise's text says";

const ALONE: &str = "an experiment changes one thing at a time";
const SYNCHRONISED: &str =
    "with synchronised batch norm two devices train as one: the number of devices is no suspect";
const SEEDS_ALIKE: &str =
    "accuracies differ from seed to seed: means are over the same seeds, at least three";
const LOST: &str =
    "the mean over all seeds with the smaller batch and rate, minus the mean with this setting";
const REGAINED: &str = "the same weights, tested in two ways: own statistics minus running statistics, with twice the batch and rate";
const DEVIATION: &str =
    "the standard deviation of a few seeds: the sum of squares divided by n − 1, then the root";
const CHANCE: &str = "a difference within the spread of the seeds needs no cause";
const SUSPECT: &str = "the suspect is the setting that loses more accuracy if nothing else changes";
const PLACE: &str = "the same weights have another accuracy with other statistics: only the difference that stays is the weights'";
const STEPS: &str = "an epoch has a step for each batch";
const AVERAGE: &str = "each step moves a running statistic by a tenth of the way: an average over about 1 / 0.1 steps";

/// Fewer seeds say nothing about chance.
const SEEDS: usize = 3;

/// The steps over which a running statistic averages: stage 5 moves it by a tenth.
const REMEMBERED: usize = 10;

/// The answer may have three digits.
const DIGITS: f64 = 0.001;

/// The runs with each of the five settings.
struct Experiment {
    same: Setting,
    batch: Setting,
    rate: Setting,
    both: Setting,
    statistics: Setting,
    /// The steps of an epoch with twice the batch.
    steps: usize,
}

/// The runs with one setting: its name, seeds in order, and accuracies.
struct Setting(String, Vec<u64>, Vec<f64>);

impl Setting {
    fn mean(&self) -> f64 {
        mean(&self.2)
    }
}

impl Experiment {
    fn new(answer: Answer) -> Outcome<Self> {
        let mut runs = trainings(answer.metrics, PROGRAM)?;
        runs.retain(|run| run.devices.len() == 2);
        let none = || Finding::new("no training on two devices").law(ALONE);
        demand(!runs.is_empty(), || none().expected("runs on two devices", "none"))?;
        let has = |run: &Summary, part| run.method.as_ref().is_some_and(|it| it.contains(part));
        let other = runs.iter().find(|run| !has(run, "synchronised batch norm"));
        other.map_or(Ok(()), |other| {
            let got = other.method.clone().unwrap_or_default();
            Err(Finding::new("the batch norms of a run")
                .expected("synchronised, on all runs", got)
                .law(SYNCHRONISED))
        })?;
        let smallest = |of: fn(&Summary) -> f64| runs.iter().map(of).fold(f64::INFINITY, f64::min);
        let batch = smallest(|run| run.options.batch_size as f64) as usize;
        let rate = smallest(|run| run.options.learning_rate);
        let setting = |batch: usize, rate: f64, own: bool| {
            let test = if own { "own statistics" } else { "running statistics" };
            let name = format!("batch {batch}, rate {rate}, tested by {test}");
            let fits = |run: &&Summary| {
                let own_batch = has(run, "tested by each batch's own");
                (run.options.batch_size, run.options.learning_rate, own_batch) == (batch, rate, own)
            };
            let found = runs.iter().filter(fits).map(|run| (run.options.seed, run.test_accuracy));
            let mut found: Vec<(u64, f64)> = found.collect();
            found.sort_by_key(|(seed, _)| *seed);
            found.dedup_by_key(|(seed, _)| *seed);
            let missing = || Finding::new("a setting has no run").law(ALONE);
            demand(!found.is_empty(), || missing().expected(&name, "none in the files"))?;
            let (seeds, accuracies) = found.into_iter().unzip();
            Ok::<_, Finding>(Setting(name, seeds, accuracies))
        };
        Ok(Self {
            same: setting(batch, rate, false)?,
            batch: setting(2 * batch, rate, false)?,
            rate: setting(batch, 2.0 * rate, false)?,
            both: setting(2 * batch, 2.0 * rate, false)?,
            statistics: setting(2 * batch, 2.0 * rate, true)?,
            steps: runs[0].images.0.div_ceil(2 * batch),
        })
    }

    fn lost_by_both(&self) -> f64 {
        self.same.mean() - self.both.mean()
    }

    fn regained(&self) -> f64 {
        self.statistics.mean() - self.both.mean()
    }

    fn spread(&self) -> f64 {
        deviation(&self.same.2)
    }
}

fn each_suspect_changes_alone(answer: Answer) -> Outcome {
    Experiment::new(answer).map(drop)
}

fn every_setting_has_the_same_seeds(answer: Answer) -> Outcome {
    let Experiment { same, batch, rate, both, statistics, .. } = Experiment::new(answer)?;
    let expected = &same.1;
    [&same, &batch, &rate, &both, &statistics].into_iter().try_for_each(|Setting(name, got, _)| {
        demand(got.len() >= SEEDS && got == expected, || {
            let all = format!("{} at least, and {}", counted(SEEDS, "seed"), in_a_row(expected));
            Finding::new(format!("{name}: the seeds")).expected(all, in_a_row(got)).law(SEEDS_ALIKE)
        })
    })
}

fn the_numbers_are_those_of_the_files(answer: Answer) -> Outcome {
    let it = Experiment::new(answer)?;
    let same = it.same.mean();
    for (what, expected, got, law) in [
        ("lost_by_batch", same - it.batch.mean(), answer.lost_by_batch, LOST),
        ("lost_by_rate", same - it.rate.mean(), answer.lost_by_rate, LOST),
        ("lost_by_both", it.lost_by_both(), answer.lost_by_both, LOST),
        ("regained_by_statistics", it.regained(), answer.regained_by_statistics, REGAINED),
        ("spread", it.spread(), answer.spread, DEVIATION),
    ] {
        compare(what, expected, got, DIGITS, law)?;
    }
    Ok(())
}

fn the_gap_is_larger_than_chance(answer: Answer) -> Outcome {
    let it = Experiment::new(answer)?;
    let (lost, spread) = (it.lost_by_both(), it.spread());
    demand(lost >= 2.0 * spread, || {
        Finding::new("the accuracy that is lost with both")
            .expected(format!("more than twice the spread, {spread:.3}"), format!("{lost:.3}"))
            .law(CHANCE)
    })
}

/// A finding about a field that is wrong, or still as it was given.
fn field(
    name: &str,
    is_open: bool,
    expected: &str,
    got: impl std::fmt::Debug,
    law: &str,
) -> Finding {
    let todo = if is_open { "TODO: " } else { "" };
    Finding::new(format!("{todo}{name}")).expected(expected, format!("{got:?}")).law(law)
}

fn the_suspect(answer: Answer) -> Outcome {
    let it = Experiment::new(answer)?;
    let (batch, rate) = (it.batch.mean(), it.rate.mean());
    let expected = if batch <= rate { Suspect::Batch } else { Suspect::Rate };
    let is_open = answer.suspect == Suspect::Unknown;
    // Within the spread, either may lose more.
    let either = (batch - rate).abs() <= it.spread() && !is_open;
    demand(answer.suspect == expected || either, || {
        field("the suspect", is_open, "the larger of two losses", answer.suspect, SUSPECT)
    })
}

fn the_place_of_the_loss(answer: Answer) -> Outcome {
    let it = Experiment::new(answer)?;
    let in_statistics = it.regained() >= it.lost_by_both() / 2.0;
    let expected = if in_statistics { LostIn::Statistics } else { LostIn::Weights };
    demand(answer.lost_in == expected, || {
        let is_open = answer.lost_in == LostIn::Unknown;
        field("lost_in", is_open, "more than half of what is lost with both", answer.lost_in, PLACE)
    })
}

/// The reason in numbers. Nobody judges its sentence.
fn the_reason(answer: Answer) -> Outcome {
    let Answer { steps, remembered, reason, .. } = answer;
    let expected = Experiment::new(answer)?.steps;
    let number = |name, expected: usize, got: usize, law| {
        demand(expected == got, || field(name, got == 0, &expected.to_string(), got, law))
    };
    number("steps", expected, steps, STEPS)?;
    number("remembered", REMEMBERED, remembered, AVERAGE)?;
    demand(!reason.trim().is_empty(), || {
        let law = "an experiment ends with a reason, and not with a number";
        field("the reason", true, "a sentence", reason, law)
    })
}
