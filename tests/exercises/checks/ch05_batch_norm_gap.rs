//! Chapter 5b, `book/src/ch05b-batch-norm.md`: the cause of a lower accuracy on two devices.
//!
//! An experiment: the numbers of the answer against those that its metrics files give.

use harness::statistics::deviation;

use crate::metrics::{Setting, Summary, compare, field, have_the_same_seeds, trainings};
use crate::prelude::*;

/// The results of the experiment, which the exercise explains.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub metrics: &'static [&'static str],
    pub lost_by_batch: f64,
    pub lost_by_rate: f64,
    pub lost_by_both: f64,
    pub regained_by_statistics: f64,
    pub spread: f64,
    pub suspect: Suspect,
    pub lost_in: LostIn,
    pub steps: usize,
    pub remembered: usize,
    pub reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    Unknown,
    Batch,
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostIn {
    Unknown,
    Weights,
    Statistics,
}

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
const SYNCHRONISED: &str = "with synchronised batch norm, two devices train as one";
const LOST: &str = "the mean over all seeds with the smaller batch and rate, minus this setting's";
const REGAINED: &str = "the same weights, tested in two ways: own statistics minus running statistics, with twice the batch and rate";
const DEVIATION: &str = "the standard deviation of a few seeds: divided by n − 1, then the root";
const LARGER: &str = "a difference within the spread of the seeds needs no cause";
const SUSPECT: &str = "the suspect is the setting that loses more accuracy if nothing else changes";
const PLACE: &str = "the same weights have another accuracy with other statistics: only the difference that stays is the weights'";
const STEPS: &str = "an epoch has a step for each batch";
const AVERAGE: &str = "each step moves a running statistic by a tenth of the way: an average over about 1 / 0.1 steps";

/// The steps over which a running statistic averages: stage 5 moves it by a tenth.
const REMEMBERED: usize = 10;

/// The answer may have three digits.
const DIGITS: f64 = 0.001;

/// The results of the runs.
struct Experiment {
    settings: Vec<Setting>,
    /// The accuracies that are lost with twice the batch, with twice the rate, and with both.
    lost: [f64; 3],
    regained: f64,
    spread: f64,
    /// The steps of an epoch with twice the batch.
    steps: usize,
}

fn experiment(answer: Answer) -> Outcome<Experiment> {
    let mut runs = trainings(answer.metrics, PROGRAM)?;
    runs.retain(|run| run.devices.len() == 2);
    let two = ("runs on two devices", "none");
    expect(!runs.is_empty(), "no training on two devices", two, ALONE)?;
    let has = |run: &Summary, part| run.method.as_ref().is_some_and(|it| it.contains(part));
    runs.iter().try_for_each(|run| {
        let sides = ("synchronised, on all runs", run.method.as_deref().unwrap_or_default());
        let right = has(run, "synchronised batch norm");
        expect(right, "the batch norms of a run", sides, SYNCHRONISED)
    })?;
    let batch = runs.iter().map(|run| run.options.batch_size).min().unwrap_or_default();
    let rate = runs.iter().map(|run| run.options.learning_rate).fold(f64::INFINITY, f64::min);
    let setting = |(batch, rate, test): (usize, f64, &str)| {
        let name = format!("batch {batch}, rate {rate}, tested by {test} statistics");
        let own =
            |run: &Summary| if has(run, "tested by each batch's own") { "own" } else { "running" };
        let of = |run: &Summary| (run.options.batch_size, run.options.learning_rate, own(run));
        let it = Setting::of(name, runs.iter().filter(|run| of(run) == (batch, rate, test)));
        let found = (&it.name, "none in the files");
        expect(!it.seeds.is_empty(), "a setting has no run", found, ALONE).map(|()| it)
    };
    let settings = [(1, 1.0), (2, 1.0), (1, 2.0), (2, 2.0)]
        .map(|(batches, rates)| (batches * batch, rates * rate, "running"));
    let all = settings.into_iter().chain([(2 * batch, 2.0 * rate, "own")]);
    let settings = all.map(setting).collect::<Outcome<Vec<_>>>()?;
    let mean = |setting: usize| settings[setting].mean();
    Ok(Experiment {
        lost: [1, 2, 3].map(|setting| mean(0) - mean(setting)),
        regained: mean(4) - mean(3),
        spread: deviation(&settings[0].accuracies),
        steps: runs[0].images.0.div_ceil(2 * batch),
        settings,
    })
}

fn each_suspect_changes_alone(answer: Answer) -> Outcome {
    experiment(answer).map(drop)
}

fn every_setting_has_the_same_seeds(answer: Answer) -> Outcome {
    have_the_same_seeds(&experiment(answer)?.settings.iter().collect::<Vec<_>>())
}

fn the_numbers_are_those_of_the_files(answer: Answer) -> Outcome {
    let Experiment { lost: [by_batch, by_rate, by_both], regained, spread, .. } =
        experiment(answer)?;
    let numbers = [
        ("lost_by_batch", by_batch, answer.lost_by_batch, LOST),
        ("lost_by_rate", by_rate, answer.lost_by_rate, LOST),
        ("lost_by_both", by_both, answer.lost_by_both, LOST),
        ("regained_by_statistics", regained, answer.regained_by_statistics, REGAINED),
        ("spread", spread, answer.spread, DEVIATION),
    ];
    numbers
        .into_iter()
        .try_for_each(|(what, expected, got, law)| compare(what, expected, got, DIGITS, law))
}

fn the_gap_is_larger_than_chance(answer: Answer) -> Outcome {
    let Experiment { lost: [.., by_both], spread, .. } = experiment(answer)?;
    let sides = (format!("more than twice the spread, {spread:.3}"), format!("{by_both:.3}"));
    let what = "the accuracy that is lost with both";
    expect(by_both >= 2.0 * spread, what, sides, LARGER)
}

fn the_suspect(answer: Answer) -> Outcome {
    let Experiment { lost: [by_batch, by_rate, _], spread, .. } = experiment(answer)?;
    let open = answer.suspect == Suspect::Unknown;
    // Within the spread, either may lose more.
    let either = (by_batch - by_rate).abs() <= spread && !open;
    let larger = if by_batch >= by_rate { Suspect::Batch } else { Suspect::Rate };
    let sides = ("the larger of two losses", format!("{:?}", answer.suspect));
    field("the suspect", open, answer.suspect == larger || either, sides, SUSPECT)
}

fn the_place_of_the_loss(answer: Answer) -> Outcome {
    let Experiment { lost: [.., by_both], regained, .. } = experiment(answer)?;
    let most = if regained >= by_both / 2.0 { LostIn::Statistics } else { LostIn::Weights };
    let sides = ("more than half of what is lost with both", format!("{:?}", answer.lost_in));
    let open = answer.lost_in == LostIn::Unknown;
    field("lost_in", open, answer.lost_in == most, sides, PLACE)
}

/// The reason in numbers. Nobody judges its sentence.
fn the_reason(answer: Answer) -> Outcome {
    let Answer { steps, remembered, reason, .. } = answer;
    let expected = experiment(answer)?.steps;
    field("steps", steps == 0, steps == expected, (expected, steps), STEPS)?;
    let right = remembered == REMEMBERED;
    field("remembered", remembered == 0, right, (REMEMBERED, remembered), AVERAGE)?;
    let law = "an experiment ends with a reason, and not with a number";
    let sides = ("a sentence", format!("{reason:?}"));
    field("the reason", true, !reason.trim().is_empty(), sides, law)
}
