//! Ratios of what was measured in turn.

use course_tests::number::four_digits;
use harness::statistics::median;
use serde::Serialize;

/// One quantity ÷ another, over several alternations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Ratio {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Ratio {
    /// Of numbers that were measured in turn: each pair shares what the machine was like at the time, so the
    /// ratios are of pairs. `None` where there is no pair.
    pub(super) fn of_pairs(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> =
            ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        if ratios.is_empty() {
            return None;
        }
        Some(Self {
            median: median(ratios.iter().copied()),
            min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            max: ratios.iter().copied().fold(0.0, f64::max),
        })
    }

    /// With as many digits as are worth keeping.
    pub(super) fn rounded(self) -> Self {
        let Self { median, min, max } = self;
        Self { median: four_digits(median), min: four_digits(min), max: four_digits(max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_pairs() {
        // The machine was twice as slow in the second alternation: no ratio shows it.
        let ratio = Ratio::of_pairs(&[1.0, 2.0, 1.5], &[2.0, 4.0, 1.0]).unwrap();
        assert_eq!(ratio, Ratio { median: 0.5, min: 0.5, max: 1.5 });
        // The ratio of the medians would be another one.
        assert_eq!(median([1.0, 2.0, 1.5]) / median([2.0, 4.0, 1.0]), 0.75);
        assert_eq!(Ratio::of_pairs(&[], &[1.0]), None);
    }
}
