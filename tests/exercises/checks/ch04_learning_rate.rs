//! Chapter 4, `book/src/ch04-data-parallel.md`: the best learning rate when the global batch grows.
//!
//! An experiment: the numbers of the answer against those that its metrics files give.

use std::collections::BTreeSet;

use crate::metrics::{Setting, Summary, compare, field, have_the_same_seeds, trainings};
use crate::prelude::*;

/// The results of the experiment, which the exercise explains.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub metrics: &'static [&'static str],
    pub steps: [usize; 2],
    pub best_rate: [f64; 2],
    pub accuracy: [f64; 2],
    pub spread: [f64; 2],
    pub lost_by_keeping_the_rate: f64,
    pub lost_by_four_times_the_rate: f64,
    pub reason: Reason,
}

/// An explanation of the best rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Unknown,
    SameUpdates,
    LongerUpdates,
    FewerSteps,
    FewerStepsUpToALimit,
}

pub const LAWS: &[Law<Answer>] =
    laws![the_runs, the_numbers, the_accuracy_that_is_lost, the_reason];

const PROGRAM: &str =
    "cargo run --release -p scratch-data-parallel -- … --metrics FILE, as the exercise's text says";

const BATCHES: &str = "four devices have four times the global batch of one: each keeps its batch";
const MAXIMUM: &str = "four points show a maximum; fewer show little";
const BETWEEN: &str = "the best rate may lie outside of the range, if it is the lowest or highest";
const GLOBAL: &str = "a step takes the global batch, on all devices together";
const BEST: &str = "the best rate has the highest accuracy, as the mean over the seeds";
const MEAN: &str = "the mean of the accuracies of all seeds, after the last epoch";
const SPREAD: &str = "the highest accuracy of a seed, minus the lowest";
const KEPT: &str =
    "four devices with their best rate, minus four devices with the best rate of one";
const TIMES: &str =
    "four devices with their best rate, minus four devices with four times the best rate of one";

/// So many rates at least, for each batch.
const RATES: usize = 4;
/// Numbers of the answer may be rounded.
const ROUNDED: f64 = 0.002;

/// The trainings with one batch: rates in order.
struct Side {
    batch: usize,
    images: usize,
    rates: Vec<(f64, Setting)>,
}

fn spread(setting: &Setting) -> f64 {
    let [low, high] = [f64::min, f64::max].map(|of| setting.accuracies.iter().copied().reduce(of));
    high.zip(low).map_or(f64::NAN, |(high, low)| high - low)
}

impl Side {
    fn new(all: &[Summary], batch: usize) -> Self {
        let runs: Vec<_> = all.iter().filter(|run| run.options.batch_size == batch).collect();
        let mut rates: Vec<f64> = runs.iter().map(|run| run.options.learning_rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let of = |rate| runs.iter().copied().filter(move |run| run.options.learning_rate == rate);
        let setting = |rate| (rate, Setting::of(format!("batch {batch}, rate {rate}"), of(rate)));
        let rates = rates.into_iter().map(setting).collect();
        Self { batch, images: runs[0].images.0, rates }
    }

    fn listed(&self) -> String {
        in_a_row(self.rates.iter().map(|(rate, _)| rate))
    }

    /// The trainings with a rate.
    fn of(&self, rate: f64) -> Outcome<&Setting> {
        let near = |(it, _): &&(f64, _)| (it - rate).abs() <= 1e-9 * rate;
        let found = self.rates.iter().find(near).map(|(_, setting)| setting);
        let what = format!("{} is no rate of the runs with batch {}", short(rate), self.batch);
        let law = "a number of the answer comes from a run";
        field(what, rate.is_nan(), found.is_some(), (self.listed(), short(rate)), law)?;
        Ok(found.expect("a rate of the runs"))
    }

    fn best(&self) -> &(f64, Setting) {
        let best = self.rates.iter().max_by(|(_, a), (_, b)| a.mean().total_cmp(&b.mean()));
        best.expect("there is a training with each batch")
    }
}

/// Reads the files: one device's batch, and four times this batch.
fn sides(answer: Answer) -> Outcome<[Side; 2]> {
    let all = trainings(answer.metrics, PROGRAM)?;
    let batches = BTreeSet::from_iter(all.iter().map(|run| run.options.batch_size));
    match Vec::from_iter(&batches)[..] {
        [&one, &four] if four == 4 * one => Ok([one, four].map(|batch| Side::new(&all, batch))),
        _ => Err(Finding::new("the batches of the runs")
            .expected("one batch, and four times this batch", in_a_row(&batches))
            .law(BATCHES)),
    }
}

fn the_runs(answer: Answer) -> Outcome {
    let sides = sides(answer)?;
    let settings = sides.iter().flat_map(|side| &side.rates).map(|(_, setting)| setting);
    have_the_same_seeds(&settings.collect::<Vec<_>>())?;
    sides.iter().try_for_each(|side @ Side { batch, rates, .. }| {
        let (best, listed) = (side.best().0, side.listed());
        let told = (format!("at least {RATES}"), rates.len());
        let what = format!("the rates of batch {batch}: {listed}");
        expect(rates.len() >= RATES, what, told, MAXIMUM)?;
        let inside = rates[0].0 < best && best < rates[rates.len() - 1].0;
        let told = ("a lower and a higher rate that are worse", format!("{best} of {listed}"));
        let what = format!("the best rate of batch {batch} is at the end of the range");
        expect(inside, what, told, BETWEEN)
    })
}

fn the_numbers(answer: Answer) -> Outcome {
    for (index, side @ Side { batch, images, .. }) in sides(answer)?.iter().enumerate() {
        let steps = answer.steps[index];
        let sides = (format!("{images} images in batches of {batch}"), steps);
        let what = format!("the steps of an epoch with batch {batch}");
        field(what, steps == 0, steps == images.div_ceil(*batch), sides, GLOBAL)?;
        let (rate, (_, best)) = (answer.best_rate[index], side.best());
        let got = side.of(rate)?;
        let mean = got.mean();
        // Rates within the spread of their seeds are equally good.
        let good = best.mean() - mean <= spread(best).max(spread(got));
        let sides = ("a rate with a higher accuracy", format!("{rate}, with {mean:.3}"));
        expect(good, format!("the best rate of batch {batch}"), sides, BEST)?;
        let name = |what| format!("{what} of {}", got.name);
        compare(name("the accuracy"), mean, answer.accuracy[index], ROUNDED, MEAN)?;
        compare(name("the spread"), spread(got), answer.spread[index], ROUNDED, SPREAD)?;
    }
    Ok(())
}

/// The accuracies that four devices lose by keeping the rate and with four times the rate, and the spread.
fn lost(answer: Answer) -> Outcome<[f64; 3]> {
    let ([one, four], [_, side]) = (answer.best_rate, sides(answer)?);
    let best = side.of(four)?;
    let loss = |rate| -> Outcome<f64> { Ok(best.mean() - side.of(rate)?.mean()) };
    Ok([loss(one)?, loss(4.0 * one)?, spread(best)])
}

fn the_accuracy_that_is_lost(answer: Answer) -> Outcome {
    let ([keeping, times, _], it) = (lost(answer)?, answer);
    compare("lost_by_keeping_the_rate", keeping, it.lost_by_keeping_the_rate, ROUNDED, KEPT)?;
    compare("lost_by_four_times_the_rate", times, it.lost_by_four_times_the_rate, ROUNDED, TIMES)
}

/// A reason is wrong if a number of the files contradicts it.
fn the_reason(answer: Answer) -> Outcome {
    let ([keeping, four_times, spread], [one, four]) = (lost(answer)?, answer.best_rate);
    let lose = |with: &str, lost: f64| {
        let lose = format!("{with}, four devices lose {lost:.3}, more than the spread {spread:.3}");
        (lost <= spread, lose)
    };
    let rate = |right, than: &str| {
        (right, format!("the best rate of four devices is {four}, {than} {one}"))
    };
    let (fits, fact) = match answer.reason {
        Reason::Unknown => (false, "none is chosen yet".to_owned()),
        Reason::SameUpdates => lose("with the best rate of one device", keeping),
        Reason::LongerUpdates => rate(four < one, "and not lower than"),
        Reason::FewerSteps => lose("with four times the rate", four_times),
        Reason::FewerStepsUpToALimit => rate(four >= one, "lower than"),
    };
    let open = answer.reason == Reason::Unknown;
    let what = format!("the reason {:?} does not fit the files", answer.reason);
    let sides = ("a reason that fits all numbers", fact);
    field(what, open, fits, sides, "an explanation fits all of its facts")
}
