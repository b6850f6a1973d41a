//! Chapter 5, `book/src/ch05c-processes.md`: going on in the middle of an epoch.
//!
//! The check interrupts a training after each step in turn, and compares this training with one without an interruption: batches,
//! rates, losses and weights of every step, the losses of the epochs, the saved state.

use crate::prelude::*;
use crate::training::{Done, Setup, Training};
use concise_wrapper::optimizer::{Momentum, Schedule};
use datasets::{CLASSES, PIXELS, Split, synthetic};
use model_parallel::layers::Layers;
use std::any::Any;

/// A checkpoint, of the type that the answer has for checkpoints.
pub type Saved = Box<dyn Any>;

/// The functions `save` and `resume`.
#[derive(Clone, Copy)]
pub struct Answer {
    /// The checkpoint of a training.
    pub save: &'static (dyn Fn(&Training) -> Result<Saved> + Sync),
    /// The training of a checkpoint.
    pub resume: &'static (dyn Fn(&Setup, &Saved) -> Result<Training> + Sync),
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

pub const LAWS: &[Law<Answer>] = laws![a_training_goes_on_to_the_last_bit in setups()];

/// The parts of a step, each with the law that a wrong one breaks: samples, rate, loss and weights.
const STEP: [(&str, &str); 4] = [
    ("has other samples", "a training goes on with the next batch of the epoch under way"),
    (
        "has another learning rate",
        "the rate depends on the steps since the beginning of the training",
    ),
    (
        "has another loss, with the same samples",
        "it begins with the saved weights, to the last bit",
    ),
    (
        "leads to other weights, with the same samples, rate and loss",
        "an update depends on weights, gradients, rate and the optimizer's velocities",
    ),
];

const STEPS: &str = "a training ends when its last epoch does, however often it was interrupted";
const ENDED: &str = "`losses` has the loss of every epoch once: an epoch whose batches are all done is pushed to `losses` by the *next* step";
const MEANS: &str = "the loss of every epoch is the mean over all its batches";
const ALL: &str =
    "a checkpoint has all that a step changes, to the last bit: x / n · n is not always x";
const OWN_MEMORY: &str = "a checkpoint has its own memory: nothing that follows changes it";
const AFTER_THE_END: &str = "a training that has ended makes no step, and pushes no loss";

shown!(Setup { data, epochs, batch_size, .. } =>
    "{} samples in batches of {batch_size}, {}", data.len(), counted(*epochs, "epoch"));

fn setups() -> [Setup; 6] {
    let momentum = |momentum| Momentum { momentum, weight_decay: 0.01 };
    let setup = |samples, epochs, batch_size, warm_up, constants| {
        let data = synthetic::dataset(Split::Train, samples);
        let schedule = Schedule { rate: 0.01, warm_up };
        let layers = Layers::dense(&[PIXELS, CLASSES]).expect("two widths");
        Setup { data, epochs, batch_size, seed: 5, schedule, constants, layers }
    };
    let slow = Schedule { rate: 0.001, warm_up: 0 };
    [
        // A warm-up that ends in the second epoch; no optimizer state; one batch in an epoch.
        setup(10, 3, 4, 5, momentum(0.9)),
        setup(9, 2, 3, 0, Momentum::default()),
        setup(3, 4, 8, 3, momentum(0.5)),
        // Sums over 7, 14 and 21 samples.
        setup(21, 2, 7, 0, momentum(0.9)),
        // 14 of 107 samples are correct: in f64, 14 / 107 · 107 is below 14.
        Setup { schedule: slow, ..setup(107, 3, 107, 0, momentum(0.9)) },
        // Batch norms, which have running statistics.
        Setup { layers: Layers::resnet18(1), ..setup(2, 1, 2, 0, momentum(0.9)) },
    ]
}

/// The steps of a training from some step on, and the losses of its epochs.
type Told = (Vec<Done>, Vec<f64>);

/// A training after some steps from weights that do not follow from the setup. An answer cannot reach these weights by
/// repeating steps.
fn after(setup: &Setup, steps: usize) -> Result<Training> {
    let mut training = setup.begin()?;
    let own = training.network.weights().snapshot()?.into_iter();
    let weights =
        own.map(|(name, value)| Ok((name, (value * 1.25)?))).collect::<Result<Vec<_>>>()?;
    training.network.weights().set(&weights)?;
    (0..steps).try_for_each(|_| training.step(setup).map(drop))?;
    Ok(training)
}

fn to_the_end(mut training: Training, setup: &Setup) -> Result<Told> {
    let mut done = Vec::new();
    while let Some(step) = training.step(setup)? {
        done.push(step);
    }
    Ok((done, training.losses))
}

/// The place in the training and the sums. (Steps show the rest.)
fn state(training: &Training) -> [(&'static str, String); 5] {
    let BatchSums { loss, correct, samples, .. } = training.sums;
    [
        ("steps", training.steps.to_string()),
        ("epoch", training.epoch.to_string()),
        ("batches", training.batches.to_string()),
        ("sums", format!("loss {loss:?}, {correct} correct of {samples} samples")),
        ("losses", format!("{:?}", training.losses)),
    ]
}

fn a_training_goes_on_to_the_last_bit(answer: Answer, setup: &Setup) -> Outcome {
    let whole = to_the_end(after(setup, 0)?, setup)?;
    let steps = whole.0.len();
    let judge = |at: usize, how: &str, saved: &Saved, law: Option<&str>| {
        let resumed = (answer.resume)(setup, saved)?;
        let (right, found) = (state(&after(setup, at)?), state(&resumed));
        compare(setup, at.min(steps), &whole, &to_the_end(resumed, setup)?)
            .and_then(|()| {
                right.into_iter().zip(found).try_for_each(|((name, right), (_, got))| {
                    same(format!("`{name}` is another afterwards"), right, got, ALL)
                })
            })
            .map_err(|it| if let Some(law) = law { it.law(law) } else { it })
            .map_err(|it| it.at(format!("interrupted after {at} of {steps} steps{how}")))
    };
    for at in 0..=steps {
        judge(at, "", &(answer.save)(&after(setup, at)?)?, None)?;
        let mut training = after(setup, at)?;
        let saved = (answer.save)(&training)?;
        training.step(setup)?;
        training.step(setup)?;
        judge(at, ", resumed when the first training has gone on", &saved, Some(OWN_MEMORY))?;
        let _later = (answer.save)(&training)?;
        judge(at, ", resumed after a later checkpoint", &saved, Some(OWN_MEMORY))?;
        judge(at, ", resumed for the second time from one checkpoint", &saved, Some(OWN_MEMORY))?;
    }
    // The step after the last one ends the last epoch.
    let saved = (answer.save)(&after(setup, steps + 1)?)?;
    judge(steps + 1, ", at the end", &saved, Some(AFTER_THE_END))?;
    let (mut training, mut done) = (after(setup, 0)?, Vec::new());
    // A training that never ends breaks the law about the number of steps.
    while let Some(step) = training.step(setup)?
        && done.len() <= steps
    {
        done.push(step);
        training = (answer.resume)(setup, &(answer.save)(&training)?)?;
    }
    let often = compare(setup, 0, &whole, &(done, training.losses));
    often.map_err(|it| it.at("interrupted after every step"))
}

/// Compares the steps after an interruption with the steps without one.
fn compare(setup: &Setup, at: usize, (all, all_losses): &Told, (done, losses): &Told) -> Outcome {
    let right = &all[at..];
    let mut pairs = right.iter().zip(done).zip(at + 1..);
    if let Some(((right, got), step)) = pairs.find(|((right, got), _)| right != got) {
        return Err(difference(setup, all, step, [right, got]));
    }
    let [expected, got] = [right.len(), done.len()]
        .map(|steps| format!("{steps} more, step {} is the last", at + steps));
    same("the number of steps is wrong", expected, got, STEPS)?;
    demand(losses.len() == all_losses.len(), || {
        let [expected, got] =
            [all_losses, losses].map(|losses| in_a_row(losses.iter().map(|&loss| short(loss))));
        let epochs = losses.len();
        Finding::new(format!("the list of mean losses has another number of epochs: {epochs}"))
            .expected(expected, got)
            .law(ENDED)
    })?;
    Expectation::of("the list of mean losses")
        .at(|index| format!("epoch {}", index + 1))
        .law(MEANS)
        .compare(all_losses, losses)
}

/// The first difference between two steps of this number, the right one and the answer's.
fn difference(setup: &Setup, all: &[Done], step: usize, both: [&Done; 2]) -> Finding {
    let [right, found] = both.map(|done| {
        let Done { epoch, samples, rate, loss, weights } = done;
        let in_order = in_a_row(samples);
        let first = (0..all.len()).find(|&step| setup.schedule.rate(step) == *rate);
        let of_step = first.map(|index| format!(", first used in step {}", index + 1));
        [
            format!("samples {in_order}{}, in epoch {epoch}", place(setup, samples)),
            format!("{rate}{}", of_step.unwrap_or_default()),
            loss.to_string(),
            format!("weights {weights}"),
        ]
    });
    let index = (0..3).find(|&index| right[index] != found[index]).unwrap_or(3);
    let near = (both[1].loss - both[0].loss).abs() < 1e-5 * both[0].loss.abs();
    let rounded = "nearly the same, as if the weights had been rounded".to_owned();
    Finding::new(format!("step {step} {}", STEP[index].0))
        .expected(&right[index], &found[index])
        .note((index == 2 && near).then_some(rounded))
        .law(STEP[index].1)
}

/// The place of a batch in the order of its epoch; may be empty.
fn place(setup: &Setup, samples: &[u32]) -> String {
    let of_epoch = |epoch| {
        let index = setup.rest_of_epoch(epoch, 0).position(|batch| batch == samples)?;
        let all = setup.batches_per_epoch();
        Some(format!(" (batch {} of {all} in the order of epoch {epoch})", index + 1))
    };
    (0..=setup.epochs + 1).find_map(of_epoch).unwrap_or_default()
}
