//! The choices of a training run.

use serde::Serialize;

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
