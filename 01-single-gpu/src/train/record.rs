//! What an epoch came to, and what several come to.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::BatchSums;

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
    pub(super) fn new(
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
