//! What an epoch came to, and what several come to.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    pub test_loss: f64,
    /// Accuracy on the test images after the epoch; not a number where `test_loss` is none.
    pub test_accuracy: f64,
    /// Training time, without the evaluation.
    pub seconds: f64,
    /// Training samples in a second.
    pub images_per_second: f64,
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
