//! The records of a training run, which the training loop and the reports share.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::interrupt;

/// The hyperparameters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TrainOptions {
    /// Passes over the training images.
    pub epochs: usize,
    /// Samples in a batch, over all devices.
    pub batch_size: usize,
    /// The learning rate.
    pub learning_rate: f64,
    /// The seed of the initial weights and of the shuffles.
    pub seed: u64,
}

/// The samples that metrics count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Images, each with its class.
    #[default]
    Images,
    /// Tokens of a text, each with the next one. A token is a byte.
    Tokens,
}

impl Unit {
    /// The noun, and the unit of speeds.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Images => ("image", "img/s"),
            Self::Tokens => ("token", "tok/s"),
        }
    }
}

/// The bits per byte of a model whose mean loss is so many nats per byte.
pub fn bits_per_byte(mean_loss: f64) -> f64 {
    mean_loss / std::f64::consts::LN_2
}

/// The metrics of a step or of many steps, as sums: shards of any size can be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchSums {
    /// The loss, summed over samples.
    pub loss: f64,
    /// The number of samples with the largest logit at the label.
    pub correct: u64,
    /// The number of samples.
    pub samples: u64,
    /// The number of devices that Ctrl-C interrupted. Above 0, this step is the last of all devices. No checkpoint stores it.
    #[serde(skip)]
    pub interrupts: u64,
}

impl BatchSums {
    /// The sums of a device without samples: only the interrupt counts.
    pub fn of_no_samples() -> Self {
        Self { interrupts: interrupt::requested().into(), ..Self::default() }
    }

    /// The loss divided by the number of samples.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.samples as f64
    }

    /// The fraction of samples that were classified correctly, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples as f64
    }

    /// The four sums: loss, correct, samples, interrupts.
    pub fn to_array(self) -> [f64; 4] {
        let Self { loss, correct, samples, interrupts } = self;
        // Counts are exact in f64 up to 2⁵³.
        [loss, correct as f64, samples as f64, interrupts as f64]
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

/// The measurements of one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Counted from 1.
    pub epoch: usize,
    /// The fraction of the epoch that was trained: 1, or less after Ctrl-C.
    pub part: f64,
    /// The mean loss of the training samples, each computed before the update of its step.
    pub train_loss: f64,
    /// The accuracy on the training samples, computed like the loss.
    pub train_accuracy: f64,
    /// The mean loss on the test images after the epoch. NaN if the device evaluated none.
    #[serde(deserialize_with = "number_or_none")]
    pub test_loss: f64,
    /// The accuracy on the test images after the epoch. NaN if the device evaluated none.
    #[serde(deserialize_with = "number_or_none")]
    pub test_accuracy: f64,
    /// Training time, without the evaluation.
    pub seconds: f64,
    /// Training samples per second. The samples of a text are its tokens.
    pub images_per_second: f64,
}

/// Reads a number. JSON has `null` in place of NaN.
fn number_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl EpochRecord {
    /// Makes a record of the sums over the training samples and over the test images, and of the `time` of training.
    pub fn new(
        epoch: usize,
        part: f64,
        train: &BatchSums,
        test: BatchSums,
        time: Duration,
    ) -> Self {
        let seconds = time.as_secs_f64();
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

/// The number of epochs that were trained. Of an interrupted epoch, the trained part counts.
pub fn epochs_trained(records: &[EpochRecord]) -> f64 {
    records.iter().map(|record| record.part).sum()
}

/// The average training time of an epoch in seconds.
pub fn seconds_per_epoch(records: &[EpochRecord]) -> f64 {
    records.iter().map(|record| record.seconds).sum::<f64>() / epochs_trained(records)
}

/// The state of the training loop between two steps. A checkpoint stores it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// The records of the epochs that have ended.
    pub records: Vec<EpochRecord>,
    /// The number of batches done in the current epoch.
    pub batches: usize,
    /// The metrics of these batches.
    pub sums: BatchSums,
    /// The training time of these batches.
    pub elapsed: Duration,
}

impl TrainerState {
    /// The number of the current epoch, counted from 1.
    pub fn epoch(&self) -> usize {
        self.records.len() + 1
    }

    /// The number of steps since the beginning of the run.
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
        let record = EpochRecord::new(2, 1.0, &sums, BatchSums::default(), Duration::from_secs(3));
        let text = serde_json::to_string(&record).unwrap();
        let read: EpochRecord = serde_json::from_str(&text).unwrap();
        assert!(read.test_loss.is_nan() && read.test_accuracy.is_nan(), "{text}");
        let tested = EpochRecord { test_loss: 0.5, test_accuracy: 0.25, ..read };
        let text = serde_json::to_string(&tested).unwrap();
        assert_eq!(serde_json::from_str::<EpochRecord>(&text).unwrap(), tested);
    }
}
