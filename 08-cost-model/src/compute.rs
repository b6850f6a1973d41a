//! The compute time of a step on a device, as a straight line: a fixed time, and a time for every sample.

use harness::statistics::median;
use serde::{Deserialize, Serialize};

use crate::step::Compute;

/// The time of a step on a device alone.
///
/// ```text
/// forward and backward of b samples   fixed + b · sample
/// ```
///
/// `fixed` does not shrink when devices share the batch: a GPU launches the same kernels, and every device runs the same
/// layers. For this reason a small batch is not faster on more devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Seconds of both passes that do not depend on the number of samples.
    pub fixed: f64,
    /// Seconds of both passes for each sample.
    pub sample: f64,
    /// The share of the forward pass in both passes, 0 to 1.
    pub forward: f64,
    /// Seconds of the update of the weights.
    pub update: f64,
}

/// Measured seconds of both passes and of the update, with a number of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Samples.
    pub samples: usize,
    /// Of the forward and the backward pass together.
    pub passes: f64,
    /// Of the update.
    pub update: f64,
}

impl Measured {
    /// The median of several measurements with the same number of samples.
    pub fn median(trials: &[Self]) -> Self {
        let middle = |pick: fn(&Self) -> f64| median(trials.iter().map(pick));
        Self {
            samples: trials.first().map_or(0, |trial| trial.samples),
            passes: middle(|trial| trial.passes),
            update: middle(|trial| trial.update),
        }
    }
}

impl Line {
    /// The line through two measurements. `forward` is the share of the forward pass in both passes.
    ///
    /// If noise makes the line fall, or begin below zero, the line goes through the origin and the larger measurement.
    // ANCHOR: through
    pub fn through(few: Measured, many: Measured, forward: f64) -> Self {
        let [b, c] = [few.samples, many.samples].map(|samples| samples as f64);
        let slope = (many.passes - few.passes) / (c - b);
        let fixed = few.passes - slope * b;
        let (fixed, sample) = match slope.is_finite() && slope > 0.0 && fixed >= 0.0 {
            true => (fixed, slope),
            false => (0.0, many.passes / c),
        };
        Self { fixed, sample, forward, update: few.update.min(many.update) }
    }
    // ANCHOR_END: through

    /// A step with so many samples.
    pub fn of(&self, samples: f64) -> Compute {
        let passes = self.fixed + self.sample * samples;
        let forward = passes * self.forward;
        Compute { forward, backward: passes - forward, update: self.update }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(samples: usize, passes: f64) -> Measured {
        Measured { samples, passes, update: passes / 100.0 }
    }

    #[test]
    fn a_line_goes_through_what_was_measured() {
        let line = Line::through(measured(10, 7.0), measured(30, 15.0), 0.25);
        assert_eq!(line, Line { fixed: 3.0, sample: 0.4, forward: 0.25, update: 0.07 });
        let compute = line.of(20.0);
        assert_eq!(compute, Compute { forward: 2.75, backward: 8.25, update: 0.07 });
    }

    #[test]
    fn of_several_measurements_the_middle_one_counts() {
        let trials = [measured(8, 3.0), measured(8, 9.0), measured(8, 4.0)];
        assert_eq!(Measured::median(&trials), measured(8, 4.0));
    }

    #[test]
    fn noise_makes_no_line_that_cannot_be() {
        let falling = Line::through(measured(10, 7.0), measured(30, 6.0), 0.5);
        assert_eq!((falling.fixed, falling.sample), (0.0, 0.2));
        let below = Line::through(measured(10, 1.0), measured(30, 6.0), 0.5);
        assert_eq!((below.fixed, below.sample), (0.0, 0.2));
        let same = Line::through(measured(10, 5.0), measured(10, 5.0), 0.5);
        assert_eq!((same.fixed, same.sample), (0.0, 0.5));
    }
}
