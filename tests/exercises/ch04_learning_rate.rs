//! Chapter 4, `book/src/ch04-data-parallel.md`: the best learning rate when the global batch grows.
//!
//! Check your answer: `cargo course check ch04_learning_rate`

use exercises::checks::ch04_learning_rate::{Answer, Reason};

/// An experiment: your answer is numbers that you measure, and a reason.
///
/// In the chapter, two devices share one batch, and nothing changes. Many users keep the batch of each device instead: k
/// devices then have k times the global batch. Which learning rate is the best for four devices?
///
/// Four devices with 16 images each make the steps of one device with a batch of 64, up to rounding. So one device is enough for
/// this experiment, and only its batch differs.
///
/// 1. Write down your expectation: does the best rate grow, shrink or stay when the global batch is four times as large?
/// 2. Train with a batch of 16, with at least four rates, and with three seeds for each rate. Choose the rates so that the best is
///    neither the lowest nor the highest.
/// 3. Do the same with a batch of 64. Its rates must include the best rate of batch 16, and four times this rate.
/// 4. Write your numbers below. An accuracy is the mean over the three seeds, after the last epoch. The spread is the highest
///    accuracy of the three seeds minus the lowest. Differences within a spread mean nothing.
///
/// Four reasons are known, and your numbers contradict three of them:
///
/// | `Reason` | explanation |
/// | --- | --- |
/// | `SameUpdates` | k devices equal one, so the best rate does not depend on the number of devices |
/// | `LongerUpdates` | the gradients of four devices add up to an update four times as long, so the best rate is lower |
/// | `FewerSteps` | a quarter of the steps, so each step may go four times as far, at any rate |
/// | `FewerStepsUpToALimit` | a quarter of the steps, so each step has to go further, up to the rate at which training fails |
///
/// A run, from the folder of the course. All runs together take two to five minutes:
///
/// ```text
/// mkdir -p target/rates
/// cargo run --release -p scratch-data-parallel -- --device cpu --devices 1 --data synthetic --train-size 6000 \
///     --test-size 1000 --epochs 6 --batch-size 16 --lr 0.1 --seed 1 --metrics target/rates/16-0.1-1.jsonl
/// ```
pub const ANSWER: Answer = Answer {
    // TODO: run the experiment, then write your numbers. Of two numbers, the first is for batch 16, the second for batch 64.
    // The metrics files, or folders of them.
    metrics: &["target/rates"],
    // The steps of an epoch.
    steps: [0, 0],
    // The rate with the highest accuracy.
    best_rate: [f64::NAN, f64::NAN],
    // The accuracy with this rate, from 0 to 1.
    accuracy: [f64::NAN, f64::NAN],
    // The spread of the three seeds with this rate.
    spread: [f64::NAN, f64::NAN],
    // The accuracy that batch 64 loses if it keeps the best rate of batch 16.
    lost_by_keeping_the_rate: f64::NAN,
    // The accuracy that batch 64 loses with four times the best rate of batch 16.
    lost_by_four_times_the_rate: f64::NAN,
    // Which explanation fits all of your numbers?
    reason: Reason::Unknown,
};

// The check of this answer. Leave this line as it is.
exercises::check!(ch04_learning_rate, ANSWER);
