//! The learning rate, step by step.

use serde::Serialize;

/// A rate that rises to its full height over the first steps, and stays there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Schedule {
    /// The full rate.
    pub rate: f64,
    /// Steps until it is reached; 0 for a rate that is constant.
    pub warm_up: usize,
}

impl Schedule {
    /// A constant rate.
    pub fn constant(rate: f64) -> Self {
        Self { rate, warm_up: 0 }
    }

    /// The rule for larger batches: k times the batch, k times the rate (Goyal et al., "Accurate, Large
    /// Minibatch SGD", 2017).
    ///
    /// One step over a batch k times as large then moves about as far as k small steps did, as long as the
    /// weights, and with them the gradients, hardly change over those k steps. At the very beginning they do
    /// change: hence the warm-up.
    pub fn scaled(self, batch: usize, reference_batch: usize) -> Self {
        Self { rate: self.rate * batch as f64 / reference_batch as f64, ..self }
    }

    /// The rate of a step, counted from 0 over the whole run: `rate · (step + 1) / warm_up` while it rises.
    pub fn rate(&self, step: usize) -> f64 {
        if step + 1 >= self.warm_up {
            return self.rate;
        }
        self.rate * (step + 1) as f64 / self.warm_up as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_rises_in_equal_steps_and_stays() {
        let rates = |warm_up| {
            (0..6).map(move |step| Schedule { rate: 0.8, warm_up }.rate(step)).collect::<Vec<_>>()
        };
        assert_eq!(rates(4), [0.2, 0.4, 0.8 * 3.0 / 4.0, 0.8, 0.8, 0.8]);
        assert_eq!(rates(0), [0.8; 6]);
        assert_eq!(rates(1), [0.8; 6]);
    }

    #[test]
    fn twice_the_batch_twice_the_rate() {
        assert_eq!(Schedule::constant(0.1).scaled(512, 256), Schedule::constant(0.2));
    }
}
