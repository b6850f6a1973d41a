//! Settings of a training that was tuned on one device and moves to several.

use candle_core::Result;
use datasets::Batch;
use model_state::parameters::Parameters;
use single_gpu::train::Step;

use crate::classifier::Classifier;

/// One replica of a model.
pub trait Model {
    /// The parameters of the replica, in the order of its gradients.
    fn parameters(&self) -> &Parameters;

    /// Loss, correct answers and gradients of a batch or a shard, all summed over its samples. The gradients of an empty shard
    /// are zero. Fails when the samples do not fit the model.
    fn gradients(&self, batch: &Batch) -> Result<Step>;
}

impl Model for Classifier {
    fn parameters(&self) -> &Parameters {
        self.parameters()
    }

    fn gradients(&self, batch: &Batch) -> Result<Step> {
        self.gradients(batch)
    }
}

/// Good settings on one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuned {
    /// Samples in a batch.
    pub batch_size: usize,
    /// The learning rate of that batch size.
    pub learning_rate: f64,
}

/// The learning rate on k devices, where a batch is k times as large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateRule {
    /// Every step has the rate of one device.
    Keep,
    /// Every step has k times the rate of one device: one large step in place of k small ones.
    Linear,
}
