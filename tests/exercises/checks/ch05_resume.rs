//! Chapter 5, `book/src/ch05c-processes.md`: going on in the middle of an epoch.
//!
//! A training that is interrupted after each step in turn, compared with a training without interruption: batches, rates, losses
//! and weights of every step, the losses of the epochs, the saved state. Then a comparison with stage 5.

use std::any::Any;

use crate::prelude::*;
use crate::training::{Done, Setup, Training};
use concise_wrapper::optimizer::Extras;
use concise_wrapper::optimizer::{Momentum, Schedule};
use datasets::source::LoadedData;
use datasets::{Split, synthetic};
use harness::records::{BatchSums, TrainOptions};
use harness::report::Report;
use model_state::weights_hash::WeightsHash;

/// A checkpoint, of the type that the answer has for checkpoints.
type Saved = Box<dyn Any>;

/// The functions `save` and `resume`.
#[derive(Clone, Copy)]
pub struct Answer {
    save: &'static (dyn Fn(&Training) -> Result<Saved> + Sync),
    resume: &'static (dyn Fn(&Setup, &Saved) -> Result<Training> + Sync),
}

impl Answer {
    /// An answer with checkpoints of type `C`.
    pub fn new<C: 'static>(
        save: fn(&Training) -> Result<C>,
        resume: fn(&Setup, &C) -> Result<Training>,
    ) -> Self {
        // An answer is checked for as long as the program runs.
        Self {
            save: Box::leak(Box::new(move |training: &_| Ok(Box::new(save(training)?) as Saved))),
            resume: Box::leak(Box::new(move |setup: &_, saved: &Saved| {
                resume(setup, saved.downcast_ref().expect("`save` has made this"))
            })),
        }
    }
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![a_training_goes_on_to_the_last_bit];

/// The law of a loss that is missing although its epoch had just ended.
const ENDED: &str = "the loss of every epoch is in `losses` once: an epoch whose batches are all done is pushed to `losses` by the *next* \
                     step";

/// The steps of a training from some step on, and the losses of its epochs.
type Told = (Vec<Done>, Vec<f64>);

struct Uninterrupted {
    setup: Setup,
    done: Vec<Done>,
    losses: Vec<f64>,
}

/// An interruption.
struct Interruption {
    after: usize,
    what: String,
    /// The law that a wrong continuation breaks, if it is known.
    law: Option<&'static str>,
}

/// A training before its first step, with weights that do not follow from the setup. An answer cannot reach these weights by
/// repeating steps.
fn begin(setup: &Setup) -> Result<Training> {
    let training = setup.begin()?;
    let weights = Classifier::new(setup.seed + 1, &Device::Cpu)?.parameters().snapshot()?;
    training.network.weights().set(&weights)?;
    Ok(training)
}

fn to_the_end(mut training: Training, setup: &Setup) -> Result<Told> {
    let mut done = Vec::new();
    while let Some(step) = training.step(setup)? {
        done.push(step);
    }
    Ok((done, training.losses))
}

impl Uninterrupted {
    fn new(setup: Setup) -> Result<Self> {
        let (done, losses) = to_the_end(begin(&setup)?, &setup)?;
        Ok(Self { setup, done, losses })
    }

    fn after(&self, steps: usize) -> Result<Training> {
        let mut training = begin(&self.setup)?;
        for _ in 0..steps {
            training.step(&self.setup)?;
        }
        Ok(training)
    }

    fn check(&self, answer: Answer) -> Result<()> {
        let Self { setup, done, .. } = self;
        for after in 0..=done.len() {
            let compare = |how: &str, law, saved: &Saved| -> Result<()> {
                let what = format!("interrupted after {after} of {} steps{how}", done.len());
                let told = to_the_end((answer.resume)(setup, saved)?, setup)?;
                self.compare(&Interruption { after, what, law }, told);
                Ok(())
            };
            compare("", None, &(answer.save)(&self.after(after)?)?)?;
            let mut training = self.after(after)?;
            let saved = (answer.save)(&training)?;
            training.step(setup)?;
            training.step(setup)?;
            let law =
                "a checkpoint has its own memory: later steps of the training do not change it";
            compare(", resumed when the first training has gone on", Some(law), &saved)?;
            let law = "a training that was resumed does not change the checkpoint";
            compare(", resumed for the second time from one checkpoint", Some(law), &saved)?;
        }
        let every_step =
            Interruption { after: 0, what: "interrupted after every step".to_owned(), law: None };
        self.compare(&every_step, self.with_an_interruption_after_every_step(answer)?);
        for after in 0..=done.len() {
            let resumed = (answer.resume)(setup, &(answer.save)(&self.after(after)?)?)?;
            Self::state_is_whole(after, &self.after(after)?, &resumed);
        }
        self.is_that_of_stage_5(answer)
    }

    /// Compares the place in the training and the sums with those at the checkpoint. (The steps that follow compare the rest.)
    fn state_is_whole(after: usize, saved: &Training, resumed: &Training) {
        let state = |training: &Training| {
            let BatchSums { loss, correct, samples, .. } = training.sums;
            [
                ("steps", training.steps.to_string()),
                ("epoch", training.epoch.to_string()),
                ("batches", training.batches.to_string()),
                ("sums", format!("loss {loss:?}, {correct} correct of {samples} samples")),
                ("losses", format!("{:?}", training.losses)),
            ]
        };
        for ((name, expected), (_, got)) in state(saved).into_iter().zip(state(resumed)) {
            if expected != got {
                let law = "a checkpoint has all that a step changes, to the last bit: sums and counts as they are, since \
                           x / n · n is not always x";
                let what =
                    format!("interrupted after {after} steps: `{name}` is another afterwards");
                fail(&what, &expected, &got, law);
            }
        }
    }

    fn with_an_interruption_after_every_step(&self, answer: Answer) -> Result<Told> {
        let mut training = begin(&self.setup)?;
        let mut done = Vec::new();
        while let Some(step) = training.step(&self.setup)? {
            done.push(step);
            training = (answer.resume)(&self.setup, &(answer.save)(&training)?)?;
            // A training that never ends breaks the law about the number of steps.
            if done.len() > self.done.len() {
                break;
            }
        }
        Ok((done, training.losses))
    }

    /// Compares the steps after an interruption with the steps without one.
    fn compare(&self, interruption: &Interruption, (done, losses): Told) {
        let Interruption { after, what, law } = interruption;
        let expected = &self.done[*after..];
        let fail = |of_step: &str, expected: &str, got: &str, usual: &str| -> ! {
            fail(&format!("{what}: {of_step}"), expected, got, law.unwrap_or(usual))
        };
        for (index, (expected, got)) in expected.iter().zip(&done).enumerate() {
            if expected != got {
                let step = after + index + 1;
                let [of_step, expected, got, law] = self.difference(step, expected, got);
                fail(&of_step, &expected, &got, &law);
            }
        }
        if done.len() != expected.len() {
            let [all, got] = [expected.len(), done.len()].map(|steps| {
                let last = after + steps;
                format!("{steps} more, step {last} is the last")
            });
            let law = "a training ends when its last epoch does, however often it was interrupted";
            fail("the number of steps is wrong", &all, &got, law);
        }
        if losses.len() != self.losses.len() {
            let of_losses =
                format!("the list of mean losses has another number of epochs: {}", losses.len());
            let usual = match after % self.setup.batches_per_epoch() {
                0 if *after > 0 => ENDED,
                _ => "the loss of every epoch is in `losses` once",
            };
            let [expected, got] = [&self.losses, &losses]
                .map(|losses| in_a_row(losses.iter().map(|&loss| short(loss))));
            fail(&of_losses, &expected, &got, usual);
        }
        Expectation::of(format!("{what}: the list of mean losses"))
            .at(|index| format!("epoch {}", index + 1))
            .law(law.unwrap_or("the loss of every epoch is the mean over all its batches"))
            .check(&self.losses, &losses);
    }

    /// The difference between two steps: a headline, the expected value, the answer's value, the law.
    fn difference(&self, step: usize, expected: &Done, got: &Done) -> [String; 4] {
        let told = |what: &str, expected: String, got: String, law: &str| {
            [format!("step {step} {what}"), expected, got, law.to_owned()]
        };
        if (expected.epoch, &expected.samples) != (got.epoch, &got.samples) {
            let [expected, got] = [expected, got].map(|done| {
                let samples = in_a_row(&done.samples);
                format!("samples {samples}{}, in epoch {}", self.place(&done.samples), done.epoch)
            });
            let law = "a training goes on with the next batch, in the order of the epoch under way";
            return told("has other samples", expected, got, law);
        }
        if expected.rate != got.rate {
            let [expected, got] = [expected.rate, got.rate].map(|rate| {
                let same = |step: &usize| self.setup.schedule.rate(*step) == rate;
                let first = (0..self.done.len()).find(same);
                let of_step = first.map(|index| format!(", first used in step {}", index + 1));
                format!("{rate}{}", of_step.unwrap_or_default())
            });
            let law = "the learning rate depends on the steps since the beginning of the training";
            return told("has another learning rate", expected, got, law);
        }
        if expected.loss != got.loss {
            let near = (got.loss - expected.loss).abs() < 1e-5 * expected.loss.abs();
            let guess =
                if near { ": nearly the same, as if the weights had been rounded" } else { "" };
            let got = format!("{}{guess}", got.loss);
            let law = "it begins with the weights that were saved, to the last bit";
            return told(
                "has another loss, with the same samples",
                expected.loss.to_string(),
                got,
                law,
            );
        }
        let [expected, got] = [expected, got].map(|done| format!("weights {}", done.weights));
        let law = "an update depends on weights, gradients, rate and the optimizer's velocities";
        told("leads to other weights, with the same samples, rate and loss", expected, got, law)
    }

    fn place(&self, samples: &[u32]) -> String {
        for epoch in 0..=self.setup.epochs + 1 {
            let mut batches = self.setup.rest_of_epoch(epoch, 0);
            if let Some(index) = batches.position(|batch| batch == samples) {
                let all = self.setup.batches_per_epoch();
                return format!(" (batch {} of {all} in the order of epoch {epoch})", index + 1);
            }
        }
        String::new()
    }

    fn is_that_of_stage_5(&self, answer: Answer) -> Result<()> {
        let Setup { data, epochs, batch_size, seed, schedule, constants } = self.setup.clone();
        let data = LoadedData { name: String::new(), train: data.clone(), test: data };
        let options = TrainOptions { epochs, batch_size, seed, learning_rate: schedule.rate };
        let extras = Extras { constants, warm_up: schedule.warm_up };
        let report = &mut Report::silent();
        let network = begin(&self.setup)?.network;
        let trained =
            concise_wrapper::train(&network, &data, &options, &extras, None, report, |_| Ok(()))
                .map_err(candle_core::Error::wrap)?;
        let expected = WeightsHash::new(&trained.weights)?;
        let saved = (answer.save)(&self.after(self.done.len() / 2)?)?;
        let (done, _) = to_the_end((answer.resume)(&self.setup, &saved)?, &self.setup)?;
        let got = done.last().map(|done| done.weights);
        if got != Some(expected) {
            let got = got.map_or("no step".to_owned(), |hash| hash.to_string());
            let law = "it goes on as concise_wrapper::train does";
            fail("other weights than stage 5's", &expected.to_string(), &got, law);
        }
        Ok(())
    }
}

fn a_training_goes_on_to_the_last_bit(answer: Answer) -> Result<()> {
    let check = move || {
        // A warm-up that ends in the second epoch; no optimizer state; one batch in an epoch.
        let momentum = |momentum| Momentum { momentum, weight_decay: 0.01 };
        let setup = |samples, epochs, batch_size, warm_up, constants| {
            let data = synthetic::dataset(Split::Train, samples);
            let schedule = Schedule { rate: 0.01, warm_up };
            Setup { data, epochs, batch_size, seed: 5, schedule, constants }
        };
        for (samples, epochs, batch_size, warm_up, constants) in [
            (10, 3, 4, 5, momentum(0.9)),
            (9, 2, 3, 0, Momentum::default()),
            (3, 4, 8, 3, momentum(0.5)),
            // Sums over 7, 14 and 21 samples.
            (21, 2, 7, 0, momentum(0.9)),
        ] {
            Uninterrupted::new(setup(samples, epochs, batch_size, warm_up, constants))?
                .check(answer)?;
        }
        // 14 of 107 samples are correct: in f64, 14 / 107 · 107 is below 14.
        let slow = Schedule { rate: 0.001, warm_up: 0 };
        let all = setup(107, 3, 107, 0, momentum(0.9));
        Uninterrupted::new(Setup { seed: 4, schedule: slow, ..all })?.check(answer)
    };
    within("going on", check)
}
