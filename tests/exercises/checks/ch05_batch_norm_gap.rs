//! Chapter 5b, `book/src/ch05b-batch-norm.md`: the cause of a lower accuracy on two devices.
//!
//! An experiment: the numbers of the answer against those that its metrics files give.

use crate::metrics::{Summary, compare, reason, trainings};
use crate::prelude::*;

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

/// Fewer seeds say nothing about chance.
const SEEDS: usize = 3;

/// The answer may have three digits.
const DIGITS: f64 = 0.001;

/// The accuracies by seed with each of the five settings.
struct Experiment {
    same: Setting,
    batch: Setting,
    rate: Setting,
    both: Setting,
    statistics: Setting,
}

/// The runs with one setting.
struct Setting {
    name: String,
    /// Seeds and accuracies, by seed.
    runs: Vec<(u64, f64)>,
}

impl Setting {
    fn mean(&self) -> f64 {
        self.runs.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / self.runs.len() as f64
    }

    fn spread(&self) -> f64 {
        let squares = self.runs.iter().map(|(_, accuracy)| (accuracy - self.mean()).powi(2));
        (squares.sum::<f64>() / (self.runs.len() as f64 - 1.0)).sqrt()
    }
}

/// Whether test images were normalised by their own batch.
fn by_own_batch(run: &Summary) -> bool {
    run.method.as_ref().is_some_and(|method| method.contains("tested by each batch's own"))
}

impl Experiment {
    fn new(answer: Answer) -> Self {
        let law = "an experiment changes one thing at a time";
        let mut runs = trainings(answer.metrics, PROGRAM);
        runs.retain(|run| run.devices.len() == 2);
        if runs.is_empty() {
            fail("no training on two devices", "runs on two devices", "none", law);
        }
        let synchronised = |run: &Summary| {
            run.method.as_ref().is_some_and(|method| method.contains("synchronised batch norm"))
        };
        if let Some(other) = runs.iter().find(|run| !synchronised(run)) {
            let got = other.method.clone().unwrap_or_default();
            let law = "with synchronised batch norm two devices train as one: the number of devices is no suspect";
            fail("the batch norms of a run", "synchronised, on all runs", &got, law);
        }
        let smallest = |of: fn(&Summary) -> f64| runs.iter().map(of).fold(f64::INFINITY, f64::min);
        let batch = smallest(|run| run.options.batch_size as f64) as usize;
        let rate = smallest(|run| run.options.learning_rate);
        let setting = |batch: usize, rate: f64, own: bool| {
            let test = if own { "own statistics" } else { "running statistics" };
            let name = format!("batch {batch}, rate {rate}, tested by {test}");
            let fits = |run: &&Summary| {
                (run.options.batch_size, run.options.learning_rate, by_own_batch(run))
                    == (batch, rate, own)
            };
            let found = runs.iter().filter(fits).map(|run| (run.options.seed, run.test_accuracy));
            let mut found: Vec<(u64, f64)> = found.collect();
            found.sort_by_key(|(seed, _)| *seed);
            found.dedup_by_key(|(seed, _)| *seed);
            if found.is_empty() {
                fail("a setting has no run", &name, "none in the files", law);
            }
            Setting { name, runs: found }
        };
        Self {
            same: setting(batch, rate, false),
            batch: setting(2 * batch, rate, false),
            rate: setting(batch, 2.0 * rate, false),
            both: setting(2 * batch, 2.0 * rate, false),
            statistics: setting(2 * batch, 2.0 * rate, true),
        }
    }

    fn settings(&self) -> [&Setting; 5] {
        [&self.same, &self.batch, &self.rate, &self.both, &self.statistics]
    }

    fn lost_by_both(&self) -> f64 {
        self.same.mean() - self.both.mean()
    }

    fn regained(&self) -> f64 {
        self.statistics.mean() - self.both.mean()
    }
}

fn each_suspect_changes_alone(answer: Answer) {
    Experiment::new(answer);
}

fn every_setting_has_the_same_seeds(answer: Answer) {
    let experiment = Experiment::new(answer);
    let seeds = |setting: &Setting| setting.runs.iter().map(|(seed, _)| *seed).collect::<Vec<_>>();
    let expected = seeds(&experiment.same);
    for setting in experiment.settings() {
        let got = seeds(setting);
        if got.len() < SEEDS || got != expected {
            let law = "accuracies differ from seed to seed: means are over the same seeds, at least three";
            let expected =
                format!("{} at least, and {}", counted(SEEDS, "seed"), in_a_row(&expected));
            fail(&format!("{}: the seeds", setting.name), &expected, &in_a_row(&got), law);
        }
    }
}

fn the_numbers_are_those_of_the_files(answer: Answer) {
    let experiment = Experiment::new(answer);
    let same = experiment.same.mean();
    let law =
        "the mean over all seeds with the smaller batch and rate, minus the mean with this setting";
    for (what, expected, got, law) in [
        ("lost_by_batch", same - experiment.batch.mean(), answer.lost_by_batch, law),
        ("lost_by_rate", same - experiment.rate.mean(), answer.lost_by_rate, law),
        ("lost_by_both", experiment.lost_by_both(), answer.lost_by_both, law),
        (
            "regained_by_statistics",
            experiment.regained(),
            answer.regained_by_statistics,
            "the same weights, tested in two ways: own statistics minus running statistics, with twice the batch and rate",
        ),
        (
            "spread",
            experiment.same.spread(),
            answer.spread,
            "the standard deviation of a few seeds: the sum of squares divided by n − 1, then the root",
        ),
    ] {
        compare(what, expected, got, DIGITS, law);
    }
}

fn the_gap_is_larger_than_chance(answer: Answer) {
    let experiment = Experiment::new(answer);
    let (lost, spread) = (experiment.lost_by_both(), experiment.same.spread());
    if lost < 2.0 * spread {
        let law = "a difference within the spread of the seeds needs no cause";
        let expected = format!("more than twice the spread, {spread:.3}");
        fail("the accuracy that is lost with both", &expected, &format!("{lost:.3}"), law);
    }
}

fn the_suspect(answer: Answer) {
    let experiment = Experiment::new(answer);
    let (batch, rate) = (experiment.batch.mean(), experiment.rate.mean());
    let expected = if batch <= rate { Suspect::Batch } else { Suspect::Rate };
    // Within the spread, either may lose more.
    let either =
        (batch - rate).abs() <= experiment.same.spread() && answer.suspect != Suspect::Unknown;
    if answer.suspect != expected && !either {
        let todo = if answer.suspect == Suspect::Unknown { "TODO: " } else { "" };
        let law = "the suspect is the setting that loses more accuracy if nothing else changes";
        let (expected, got) = ("the larger of two losses", format!("{:?}", answer.suspect));
        fail(&format!("{todo}the suspect"), expected, &got, law);
    }
}

fn the_place_of_the_loss(answer: Answer) {
    let experiment = Experiment::new(answer);
    let (lost, regained) = (experiment.lost_by_both(), experiment.regained());
    let expected = if regained >= lost / 2.0 { LostIn::Statistics } else { LostIn::Weights };
    if answer.lost_in != expected {
        let todo = if answer.lost_in == LostIn::Unknown { "TODO: " } else { "" };
        let law = "the same weights have another accuracy with other statistics: only the difference that stays is the weights'";
        let expected = "more than half of what is lost with both";
        fail(&format!("{todo}lost_in"), expected, &format!("{:?}", answer.lost_in), law);
    }
}

fn the_reason(answer: Answer) {
    reason(answer.reason);
}
