//! What steps saw of their batches.

use std::ops::AddAssign;

use candle_core::{Device, Result, Tensor, bail};

use crate::interrupt;

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

    /// The four sums, as a tensor has them.
    pub(crate) fn to_array(self) -> [f64; 4] {
        let Self { loss, correct, samples, interrupts } = self;
        // Counts are exact in f64 up to 2⁵³.
        [loss, correct as f64, samples as f64, interrupts as f64]
    }

    /// The sums that a tensor's four numbers tell.
    pub(crate) fn from_slice(sums: &[f64]) -> Result<Self> {
        let [loss, correct, samples, interrupts] = *sums else {
            bail!("four sums expected, got {}", sums.len())
        };
        let count = |sum: f64| sum as u64;
        Ok(Self {
            loss,
            correct: count(correct),
            samples: count(samples),
            interrupts: count(interrupts),
        })
    }

    /// The sums as a tensor `[4]` (f64), to be added up across devices.
    ///
    /// # Errors
    ///
    /// When the tensor cannot be made on `device`.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        Tensor::new(&self.to_array(), device)
    }

    /// The sums that such a tensor holds.
    ///
    /// # Errors
    ///
    /// When it is not `[4]`, f64.
    pub fn from_tensor(tensor: &Tensor) -> Result<Self> {
        Self::from_slice(&tensor.to_vec1::<f64>()?)
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
