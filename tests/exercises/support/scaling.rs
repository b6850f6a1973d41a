//! Settings of a training that was tuned on one device and moves to several.

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
