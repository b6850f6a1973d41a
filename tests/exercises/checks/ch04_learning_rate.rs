//! Chapter 4, `book/src/ch04-data-parallel.md`: the best learning rate when the global batch grows.
//!
//! An experiment: the numbers of the answer against those that its metrics files give.

use crate::metrics::{Summary, compare, reason, trainings};
use crate::panicking::fail;
use crate::prelude::*;

/// The results of the experiment. Of two numbers, the first is for one device, the second for two.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The metrics files, or folders of them.
    pub metrics: &'static [&'static str],
    /// The steps of an epoch.
    pub steps: [usize; 2],
    /// The rate with the highest test accuracy.
    pub best_rate: [f64; 2],
    /// The test accuracy that two devices lose with the best rate of one device.
    pub lost_by_keeping_the_rate: f64,
    /// The reason.
    pub reason: &'static str,
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    each_device_keeps_its_batch,
    the_best_rates_lie_between_others,
    the_steps_of_an_epoch,
    the_best_rates,
    the_accuracy_that_is_lost,
    the_reason
];

const PROGRAM: &str =
    "cargo run --release -p scratch-data-parallel -- … --metrics FILE, as the exercise's text says";

/// So many rates at least, on one device and on two.
const RATES: usize = 4;

/// Accuracies of two seeds differ by so much: rates that are as good as this are equally good.
const CHANCE: f64 = 0.01;

const WHO: [&str; 2] = ["one device", "two devices"];

/// The trainings on one device and those on two, each with another rate, by rate.
struct Experiment([Vec<Summary>; 2]);

impl Experiment {
    /// Reads the files. Of the trainings on one device, those count that have half of the two devices' batch.
    fn new(answer: Answer) -> Self {
        let law = "each device keeps its batch: two devices have twice the global batch of one";
        let all = trainings(answer.metrics, PROGRAM);
        let on = |devices: usize| all.iter().filter(move |run| run.devices.len() == devices);
        let Some(batch) = on(2).map(|run| run.options.batch_size).next() else {
            fail("no training on two devices", "runs with --devices 2", "none", law)
        };
        if let Some(other) = on(2).find(|run| run.options.batch_size != batch) {
            let got = format!("{batch} and {}", other.options.batch_size);
            fail("two devices train with more than one batch", "one batch", &got, law);
        }
        let half: Vec<&Summary> = on(1).filter(|run| 2 * run.options.batch_size == batch).collect();
        if half.is_empty() {
            let mut batches: Vec<usize> = on(1).map(|run| run.options.batch_size).collect();
            batches.dedup();
            let expected = format!("{}: half of the {batch} of two devices", batch / 2);
            fail("the batch of one device", &expected, &in_a_row(&batches), law);
        }
        Self([Self::by_rate(half), Self::by_rate(on(2).collect())])
    }

    /// One training for each rate, with one seed.
    fn by_rate(mut runs: Vec<&Summary>) -> Vec<Summary> {
        runs.sort_by(|a, b| a.options.learning_rate.total_cmp(&b.options.learning_rate));
        runs.dedup_by_key(|run| run.options.learning_rate.to_bits());
        if let Some(other) = runs.iter().find(|run| run.options.seed != runs[0].options.seed) {
            let (expected, got) =
                (runs[0].options.seed.to_string(), other.options.seed.to_string());
            fail("the seed", &expected, &got, "an experiment changes one thing at a time");
        }
        runs.into_iter().cloned().collect()
    }

    fn rates(&self, of: usize) -> Vec<f64> {
        self.0[of].iter().map(|run| run.options.learning_rate).collect()
    }

    /// The accuracy with a rate. Fails when no training has this rate.
    fn accuracy(&self, of: usize, rate: f64) -> f64 {
        let run = self.0[of].iter().find(|run| run.options.learning_rate == rate);
        run.map_or_else(
            || {
                let todo = if rate.is_nan() { "TODO: " } else { "" };
                fail(
                    &format!("{todo}{rate} is no rate of the runs on {}", WHO[of]),
                    &in_a_row(self.rates(of)),
                    &rate.to_string(),
                    "a number of the answer comes from a run",
                )
            },
            |run| run.test_accuracy,
        )
    }

    fn best(&self, of: usize) -> &Summary {
        let best = self.0[of].iter().max_by(|a, b| a.test_accuracy.total_cmp(&b.test_accuracy));
        best.expect("there is a training for each number of devices")
    }
}

fn each_device_keeps_its_batch(answer: Answer) {
    Experiment::new(answer);
}

fn the_best_rates_lie_between_others(answer: Answer) {
    let experiment = Experiment::new(answer);
    for (of, who) in WHO.iter().enumerate() {
        let rates = experiment.rates(of);
        if rates.len() < RATES {
            let what = format!("the rates of {who}: {}", in_a_row(&rates));
            let law = "four points show a maximum; fewer show little";
            fail(&what, &format!("at least {RATES}"), &rates.len().to_string(), law);
        }
        let best = experiment.best(of).options.learning_rate;
        if best == rates[0] || best == rates[rates.len() - 1] {
            let law = "the best rate may lie outside of the range, as long as it is the lowest or the highest";
            let what = format!("the best rate of {who} is at the end of the range");
            fail(
                &what,
                "a lower and a higher rate that are worse",
                &format!("{best} of {}", in_a_row(&rates)),
                law,
            );
        }
    }
}

fn the_steps_of_an_epoch(answer: Answer) {
    let experiment = Experiment::new(answer);
    for (of, who) in WHO.iter().enumerate() {
        let Summary { images, options, .. } = &experiment.0[of][0];
        let expected = images.0.div_ceil(options.batch_size);
        if answer.steps[of] != expected {
            let todo = if answer.steps[of] == 0 { "TODO: " } else { "" };
            let law = "a step takes the global batch, on all devices together";
            let expected = format!("{} images in batches of {}", images.0, options.batch_size);
            fail(
                &format!("{todo}the steps of an epoch on {who}"),
                &expected,
                &answer.steps[of].to_string(),
                law,
            );
        }
    }
}

fn the_best_rates(answer: Answer) {
    let experiment = Experiment::new(answer);
    for (of, who) in WHO.iter().enumerate() {
        let best = experiment.best(of);
        let accuracy = experiment.accuracy(of, answer.best_rate[of]);
        if best.test_accuracy - accuracy > CHANCE {
            let law = "the best rate has the highest test accuracy after the last epoch";
            let got = format!("{}, with {accuracy:.3}", answer.best_rate[of]);
            fail(&format!("the best rate of {who}"), "a rate with a higher accuracy", &got, law);
        }
    }
}

fn the_accuracy_that_is_lost(answer: Answer) {
    let experiment = Experiment::new(answer);
    let kept = experiment.accuracy(1, answer.best_rate[0]);
    let lost = experiment.accuracy(1, answer.best_rate[1]) - kept;
    let law = "two devices with their best rate, minus two devices with the best rate of one";
    compare("lost_by_keeping_the_rate", lost, answer.lost_by_keeping_the_rate, 0.002, law);
}

fn the_reason(answer: Answer) {
    reason(answer.reason);
}
