//! Chapter 4, `book/src/ch04-data-parallel.md`: the best learning rate when the global batch grows.
//!
//! An experiment: the numbers of the answer against those that its metrics files give.

use harness::statistics::mean;

use crate::metrics::{Summary, by_seed, compare, field, trainings};
use crate::prelude::*;

/// The results of the experiment. Of two numbers, the first is for the batch of one device, the second for four devices.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The metrics files, or folders of them.
    pub metrics: &'static [&'static str],
    /// The steps of an epoch.
    pub steps: [usize; 2],
    /// The rate with the highest test accuracy, as the mean over the seeds.
    pub best_rate: [f64; 2],
    /// This accuracy.
    pub accuracy: [f64; 2],
    /// The highest accuracy of a seed with this rate, minus the lowest.
    pub spread: [f64; 2],
    /// The accuracy that four devices lose with the best rate of one device.
    pub lost_by_keeping_the_rate: f64,
    /// The accuracy that four devices lose with four times the best rate of one device.
    pub lost_by_four_times_the_rate: f64,
    /// The explanation of these numbers.
    pub reason: Reason,
}

/// An explanation of the best rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Not answered yet.
    Unknown,
    /// k devices equal one, so the best rate does not depend on the number of devices.
    SameUpdates,
    /// The gradients of four devices add up to an update four times as long, so the best rate is lower.
    LongerUpdates,
    /// Four devices make a quarter of the steps of an epoch, so each step may go four times as far, at any rate.
    FewerSteps,
    /// Four devices make a quarter of the steps, so each step has to go further, up to the rate at which training fails.
    FewerStepsUpToALimit,
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] =
    laws![the_runs, the_numbers, the_accuracy_that_is_lost, the_reason];

const PROGRAM: &str =
    "cargo run --release -p scratch-data-parallel -- … --metrics FILE, as the exercise's text says";

const BATCHES: &str =
    "each device keeps its batch: four devices have four times the global batch of one";
const ALIKE: &str = "one seed is chance, and both sides need the same seeds: an experiment changes one thing at a time";
const MAXIMUM: &str = "four points show a maximum; fewer show little";
const BETWEEN: &str =
    "the best rate may lie outside of the range, as long as it is the lowest or the highest";
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
/// So many seeds at least, for each rate.
const SEEDS: usize = 3;
/// Numbers of the answer may be rounded.
const ROUNDED: f64 = 0.002;

/// A rate, its seeds in order, and the accuracies.
struct Rate(f64, (Vec<u64>, Vec<f64>));

impl Rate {
    fn mean(&self) -> f64 {
        mean(&self.1.1)
    }

    fn spread(&self) -> f64 {
        let [low, high] = [f64::min, f64::max].map(|of| self.1.1.iter().copied().reduce(of));
        high.zip(low).map_or(f64::NAN, |(high, low)| high - low)
    }
}

/// The trainings with one batch: images, and rates in order.
struct Side {
    batch: usize,
    images: usize,
    rates: Vec<Rate>,
}

impl Side {
    fn new(all: &[Summary], batch: usize) -> Self {
        let runs: Vec<&Summary> =
            all.iter().filter(|run| run.options.batch_size == batch).collect();
        let mut rates: Vec<f64> = runs.iter().map(|run| run.options.learning_rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let of = |rate| runs.iter().copied().filter(move |run| run.options.learning_rate == rate);
        let rates = rates.into_iter().map(|rate| Rate(rate, by_seed(of(rate))));
        Self { batch, images: runs[0].images.0, rates: rates.collect() }
    }

    fn listed(&self) -> String {
        in_a_row(self.rates.iter().map(|it| it.0))
    }

    /// The trainings with a rate.
    fn of(&self, rate: f64) -> Outcome<&Rate> {
        let near = |it: &&Rate| (it.0 - rate).abs() <= 1e-9 * rate;
        self.rates.iter().find(near).ok_or_else(|| {
            let (todo, rate) = (if rate.is_nan() { "TODO: " } else { "" }, short(rate));
            Finding::new(format!("{todo}{rate} is no rate of the runs with batch {}", self.batch))
                .expected(self.listed(), rate)
                .law("a number of the answer comes from a run")
        })
    }

    fn best(&self) -> &Rate {
        let best = self.rates.iter().max_by(|a, b| a.mean().total_cmp(&b.mean()));
        best.expect("there is a training with each batch")
    }
}

/// Reads the files: one device's batch, and four times this batch.
fn sides(answer: Answer) -> Outcome<[Side; 2]> {
    let all = trainings(answer.metrics, PROGRAM)?;
    let mut batches: Vec<usize> = all.iter().map(|run| run.options.batch_size).collect();
    batches.sort_unstable();
    batches.dedup();
    match batches[..] {
        [one, four] if four == 4 * one => Ok([one, four].map(|batch| Side::new(&all, batch))),
        _ => Err(Finding::new("the batches of the runs")
            .expected("one batch, and four times this batch", in_a_row(&batches))
            .law(BATCHES)),
    }
}

fn the_runs(answer: Answer) -> Outcome {
    let sides = sides(answer)?;
    let expected = &sides[0].rates[0].1.0;
    let wanted = match expected.len() {
        SEEDS.. => in_a_row(expected),
        _ => format!("at least {SEEDS} seeds, the same for all rates"),
    };
    for side @ Side { batch, rates, .. } in &sides {
        for Rate(rate, (seeds, _)) in rates {
            demand(seeds == expected && seeds.len() >= SEEDS, || {
                let what = format!("the seeds of batch {batch}, rate {rate}");
                Finding::new(what).expected(&wanted, in_a_row(seeds)).law(ALIKE)
            })?;
        }
        let (best, listed) = (side.best().0, side.listed());
        demand(rates.len() >= RATES, || {
            let what = format!("the rates of batch {batch}: {listed}");
            Finding::new(what).expected(format!("at least {RATES}"), rates.len()).law(MAXIMUM)
        })?;
        demand(rates[0].0 < best && best < rates[rates.len() - 1].0, || {
            Finding::new(format!("the best rate of batch {batch} is at the end of the range"))
                .expected("a lower and a higher rate that are worse", format!("{best} of {listed}"))
                .law(BETWEEN)
        })?;
    }
    Ok(())
}

fn the_numbers(answer: Answer) -> Outcome {
    for (index, side @ Side { batch, images, .. }) in sides(answer)?.iter().enumerate() {
        let steps = answer.steps[index];
        let sides = [format!("{images} images in batches of {batch}"), steps.to_string()];
        let what = format!("the steps of an epoch with batch {batch}");
        field(what, steps == 0, steps == images.div_ceil(*batch), sides, GLOBAL)?;
        let (best, got) = (side.best(), side.of(answer.best_rate[index])?);
        let (rate, mean) = (got.0, got.mean());
        // Rates within the spread of their seeds are equally good.
        let good = best.mean() - mean <= best.spread().max(got.spread());
        let sides = ["a rate with a higher accuracy".to_owned(), format!("{rate}, with {mean:.3}")];
        field(format!("the best rate of batch {batch}"), false, good, sides, BEST)?;
        let name = |what| format!("{what} of batch {batch}, rate {rate}");
        compare(name("the accuracy"), mean, answer.accuracy[index], ROUNDED, MEAN)?;
        compare(name("the spread"), got.spread(), answer.spread[index], ROUNDED, SPREAD)?;
    }
    Ok(())
}

/// The accuracies that four devices lose by keeping the rate and with four times the rate, and the spread.
fn lost(answer: Answer) -> Outcome<[f64; 3]> {
    let ([one, four], [_, side]) = (answer.best_rate, sides(answer)?);
    let best = side.of(four)?;
    let loss = |rate| -> Outcome<f64> { Ok(best.mean() - side.of(rate)?.mean()) };
    Ok([loss(one)?, loss(4.0 * one)?, best.spread()])
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
    let sides = ["a reason that fits all numbers".to_owned(), fact];
    field(what, open, fits, sides, "an explanation fits all of its facts")
}
