//! Chapter 4, `book/src/ch04-data-parallel.md`: the best learning rate when the global batch grows.
//!
//! An experiment: the numbers of the answer against those that its metrics files give.

use harness::statistics::mean;

use crate::metrics::{Summary, compare, trainings};
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
pub const LAWS: &[Law<Answer>] = laws![
    four_times_the_batch_and_the_same_seeds,
    the_best_rates_lie_between_others,
    the_steps_of_an_epoch,
    the_best_rates,
    the_accuracies_and_their_spreads,
    the_accuracy_that_is_lost,
    the_reason
];

const PROGRAM: &str =
    "cargo run --release -p scratch-data-parallel -- … --metrics FILE, as the exercise's text says";

/// So many rates at least, for each batch.
const RATES: usize = 4;
/// So many seeds at least, for each rate.
const SEEDS: usize = 3;
/// The global batch grows by this factor.
const DEVICES: usize = 4;
/// Numbers of the answer may be rounded.
const ROUNDED: f64 = 0.002;

/// The trainings with one rate, one for each seed.
struct Rate {
    rate: f64,
    seeds: Vec<u64>,
    accuracies: Vec<f64>,
}

impl Rate {
    fn mean(&self) -> f64 {
        mean(&self.accuracies)
    }

    fn spread(&self) -> f64 {
        let [low, high] = [f64::min, f64::max]
            .map(|of| self.accuracies.iter().copied().reduce(of).unwrap_or(f64::NAN));
        high - low
    }
}

/// The trainings with one batch, by rate.
struct Side {
    batch: usize,
    images: usize,
    rates: Vec<Rate>,
}

impl Side {
    /// The trainings with this batch. One training counts for each rate and seed.
    fn new(all: &[Summary], batch: usize) -> Self {
        let mut runs: Vec<&Summary> =
            all.iter().filter(|run| run.options.batch_size == batch).collect();
        let key = |run: &Summary| (run.options.learning_rate.to_bits(), run.options.seed);
        runs.sort_by_key(|run| key(run));
        runs.dedup_by_key(|run| key(run));
        let groups = runs.chunk_by(|a, b| a.options.learning_rate == b.options.learning_rate);
        let rates = groups.map(|runs| Rate {
            rate: runs[0].options.learning_rate,
            seeds: runs.iter().map(|run| run.options.seed).collect(),
            accuracies: runs.iter().map(|run| run.test_accuracy).collect(),
        });
        Self { batch, images: runs[0].images.0, rates: rates.collect() }
    }

    fn listed(&self) -> String {
        in_a_row(self.rates.iter().map(|it| it.rate))
    }

    /// The trainings with a rate.
    fn of(&self, rate: f64) -> Outcome<&Rate> {
        let near = |it: &&Rate| (it.rate - rate).abs() <= 1e-9 * rate;
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
    let all = trainings(answer.metrics, PROGRAM);
    let mut batches: Vec<usize> = all.iter().map(|run| run.options.batch_size).collect();
    batches.sort_unstable();
    batches.dedup();
    match batches[..] {
        [one, four] if four == DEVICES * one => Ok([one, four].map(|batch| Side::new(&all, batch))),
        _ => Err(Finding::new("the batches of the runs")
            .expected("one batch, and four times this batch", in_a_row(&batches))
            .law(
                "each device keeps its batch: four devices have four times the global batch of one",
            )),
    }
}

fn four_times_the_batch_and_the_same_seeds(answer: Answer) -> Outcome {
    let law = "one seed is chance, and both sides need the same seeds: an experiment changes one thing at a time";
    let sides = sides(answer)?;
    let expected = &sides[0].rates[0].seeds;
    let wanted = match expected.len() {
        SEEDS.. => in_a_row(expected),
        _ => format!("at least {SEEDS} seeds, the same for all rates"),
    };
    for Side { batch, rates, .. } in &sides {
        for Rate { rate, seeds, .. } in rates {
            demand(seeds == expected && seeds.len() >= SEEDS, || {
                Finding::new(format!("the seeds of batch {batch}, rate {rate}"))
                    .expected(&wanted, in_a_row(seeds))
                    .law(law)
            })?;
        }
    }
    Ok(())
}

fn the_best_rates_lie_between_others(answer: Answer) -> Outcome {
    for side in sides(answer)? {
        let (batch, listed, rates) = (side.batch, side.listed(), &side.rates);
        demand(rates.len() >= RATES, || {
            Finding::new(format!("the rates of batch {batch}: {listed}"))
                .expected(format!("at least {RATES}"), rates.len())
                .law("four points show a maximum; fewer show little")
        })?;
        let best = side.best().rate;
        demand(rates[0].rate < best && best < rates[rates.len() - 1].rate, || {
            Finding::new(format!("the best rate of batch {batch} is at the end of the range"))
                .expected("a lower and a higher rate that are worse", format!("{best} of {listed}"))
                .law("the best rate may lie outside of the range, as long as it is the lowest or the highest")
        })?;
    }
    Ok(())
}

fn the_steps_of_an_epoch(answer: Answer) -> Outcome {
    for (side, got) in sides(answer)?.iter().zip(answer.steps) {
        let todo = if got == 0 { "TODO: " } else { "" };
        demand(got == side.images.div_ceil(side.batch), || {
            Finding::new(format!("{todo}the steps of an epoch with batch {}", side.batch))
                .expected(format!("{} images in batches of {}", side.images, side.batch), got)
                .law("a step takes the global batch, on all devices together")
        })?;
    }
    Ok(())
}

fn the_best_rates(answer: Answer) -> Outcome {
    for (side, rate) in sides(answer)?.iter().zip(answer.best_rate) {
        let (best, got) = (side.best(), side.of(rate)?);
        // Rates within the spread of their seeds are equally good.
        demand(best.mean() - got.mean() <= best.spread().max(got.spread()), || {
            Finding::new(format!("the best rate of batch {}", side.batch))
                .expected(
                    "a rate with a higher accuracy",
                    format!("{rate}, with {:.3}", got.mean()),
                )
                .law("the best rate has the highest accuracy, as the mean over the seeds")
        })?;
    }
    Ok(())
}

fn the_accuracies_and_their_spreads(answer: Answer) -> Outcome {
    for (index, side) in sides(answer)?.iter().enumerate() {
        let best = side.of(answer.best_rate[index])?;
        let name = |what: &str| format!("{what} of batch {}, rate {}", side.batch, best.rate);
        let law = "the mean of the accuracies of all seeds, after the last epoch";
        compare(&name("the accuracy"), best.mean(), answer.accuracy[index], ROUNDED, law);
        let law = "the highest accuracy of a seed, minus the lowest";
        compare(&name("the spread"), best.spread(), answer.spread[index], ROUNDED, law);
    }
    Ok(())
}

/// The accuracies that four devices lose by keeping the rate, and with four times the rate.
fn lost(answer: Answer) -> Outcome<[f64; 2]> {
    let [one, four] = answer.best_rate;
    let [_, side] = sides(answer)?;
    let loss = |rate| -> Outcome<f64> { Ok(side.of(four)?.mean() - side.of(rate)?.mean()) };
    Ok([loss(one)?, loss(one * DEVICES as f64)?])
}

fn the_accuracy_that_is_lost(answer: Answer) -> Outcome {
    let [keeping, four_times] = lost(answer)?;
    let law = "four devices with their best rate, minus four devices with the best rate of one";
    let got = answer.lost_by_keeping_the_rate;
    compare("lost_by_keeping_the_rate", keeping, got, ROUNDED, law);
    let law = "four devices with their best rate, minus four devices with four times the best rate of one";
    let got = answer.lost_by_four_times_the_rate;
    compare("lost_by_four_times_the_rate", four_times, got, ROUNDED, law);
    Ok(())
}

/// A reason is wrong if a number of the files contradicts it.
fn the_reason(answer: Answer) -> Outcome {
    let [keeping, four_times] = lost(answer)?;
    let [one, four] = answer.best_rate;
    let spread = sides(answer)?[1].of(four)?.spread();
    let lose = |lost: f64| format!("four devices lose {lost:.3}, more than the spread {spread:.3}");
    let fact = match answer.reason {
        Reason::Unknown => "none is chosen yet".to_owned(),
        Reason::SameUpdates if keeping > spread => {
            format!("with the best rate of one device, {}", lose(keeping))
        }
        Reason::LongerUpdates if four >= one => {
            format!("the best rate of four devices is {four}, and not lower than {one}")
        }
        Reason::FewerSteps if four_times > spread => {
            format!("with four times the rate, {}", lose(four_times))
        }
        Reason::FewerStepsUpToALimit if four < one => {
            format!("the best rate of four devices is {four}, lower than {one}")
        }
        _ => return Ok(()),
    };
    let todo = if answer.reason == Reason::Unknown { "TODO: " } else { "" };
    Err(Finding::new(format!("{todo}the reason {:?} does not fit the files", answer.reason))
        .expected("a reason that fits all numbers", fact)
        .law("an explanation fits all of its facts"))
}
