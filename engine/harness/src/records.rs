//! The records of a training run: what the loop over steps and its reports share.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::interrupt;

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainOptions {
    /// Passes over the training images.
    pub epochs: usize,
    /// Samples in a batch, over all devices.
    pub batch_size: usize,
    /// The learning rate.
    pub learning_rate: f64,
    /// Decides initial weights and shuffles.
    pub seed: u64,
}

/// What a step, or many steps, saw. Sums, so that shards of any size can be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchSums {
    /// The loss, summed over samples.
    pub loss: f64,
    /// Samples whose largest logit is at the label.
    pub correct: u64,
    /// Samples.
    pub samples: u64,
    /// How many devices have seen a Ctrl-C: above 0, and this step is the last. It travels with the sums so
    /// that all devices learn of it in the same step, and stop together.
    pub interrupts: u64,
}

impl BatchSums {
    /// What a device sees that has no samples: whether there was a Ctrl-C.
    pub fn of_no_samples() -> Self {
        Self { interrupts: interrupt::requested().into(), ..Self::default() }
    }

    /// The mean loss of a sample.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.samples as f64
    }

    /// The share of samples that were classified correctly, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples as f64
    }

    /// The four sums: loss, correct, samples, interrupts.
    pub fn to_array(self) -> [f64; 4] {
        let Self { loss, correct, samples, interrupts } = self;
        // Counts are exact in f64 up to 2⁵³.
        [loss, correct as f64, samples as f64, interrupts as f64]
    }

    /// The sums out of the numbers of [`to_array`](Self::to_array).
    pub fn from_array([loss, correct, samples, interrupts]: [f64; 4]) -> Self {
        let count = |sum: f64| sum as u64;
        Self {
            loss,
            correct: count(correct),
            samples: count(samples),
            interrupts: count(interrupts),
        }
    }
}

impl AddAssign for BatchSums {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.samples += other.samples;
        self.interrupts += other.interrupts;
    }
}

/// One epoch, measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Counted from 1.
    pub epoch: usize,
    /// The share of the epoch that was trained on: 1, or less where Ctrl-C cut it short.
    pub part: f64,
    /// Mean loss of the epoch's training samples, each before the update it contributed to.
    pub train_loss: f64,
    /// Share of them classified correctly, likewise.
    pub train_accuracy: f64,
    /// Mean loss on the test images after the epoch; not a number on a device that left them to another.
    #[serde(deserialize_with = "number_or_none")]
    pub test_loss: f64,
    /// Accuracy on the test images after the epoch; not a number where `test_loss` is none.
    #[serde(deserialize_with = "number_or_none")]
    pub test_accuracy: f64,
    /// Training time, without the evaluation.
    pub seconds: f64,
    /// Training samples in a second.
    pub images_per_second: f64,
}

/// What is not a number is written as nothing (`null`).
fn number_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl EpochRecord {
    /// From the sums over an epoch's training samples, those over the test images if they were evaluated, and
    /// the time without the evaluation.
    pub fn new(
        epoch: usize,
        part: f64,
        train: &BatchSums,
        test: Option<BatchSums>,
        elapsed: Duration,
    ) -> Self {
        let seconds = elapsed.as_secs_f64();
        let test = test.unwrap_or_default();
        Self {
            epoch,
            part,
            train_loss: train.mean_loss(),
            train_accuracy: train.accuracy(),
            test_loss: test.mean_loss(),
            test_accuracy: test.accuracy(),
            seconds,
            images_per_second: train.samples as f64 / seconds,
        }
    }
}

/// How many epochs were trained; one that was cut short counts for its part.
pub fn epochs_trained(records: &[EpochRecord]) -> f64 {
    records.iter().map(|record| record.part).sum()
}

/// Average training time of an epoch in seconds.
pub fn seconds_per_epoch(records: &[EpochRecord]) -> f64 {
    records.iter().map(|record| record.seconds).sum::<f64>() / epochs_trained(records)
}

/// Where a run is between two steps: what a checkpoint has to keep of the loop.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Position {
    /// The epochs that have ended.
    pub records: Vec<EpochRecord>,
    /// Batches done of the epoch that is under way.
    pub batches: usize,
    /// What those batches saw.
    pub sums: BatchSums,
    /// How long they took.
    pub elapsed: Duration,
}

impl Position {
    /// The epoch that is under way, counted from 1.
    pub fn epoch(&self) -> usize {
        self.records.len() + 1
    }

    /// Steps since the beginning of the run.
    pub fn steps(&self, batches_per_epoch: usize) -> usize {
        self.records.len() * batches_per_epoch + self.batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_without_a_test_is_read_as_it_was_written() {
        let sums = BatchSums { loss: 6.0, correct: 1, samples: 3, ..BatchSums::default() };
        let record = EpochRecord::new(2, 1.0, &sums, None, Duration::from_secs(3));
        let text = serde_json::to_string(&record).unwrap();
        let read: EpochRecord = serde_json::from_str(&text).unwrap();
        assert!(read.test_loss.is_nan() && read.test_accuracy.is_nan(), "{text}");
        let tested = EpochRecord { test_loss: 0.5, test_accuracy: 0.25, ..read };
        let text = serde_json::to_string(&tested).unwrap();
        assert_eq!(serde_json::from_str::<EpochRecord>(&text).unwrap(), tested);
    }
}
