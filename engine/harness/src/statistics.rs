//! The median, the mean and the standard deviation of several measurements; the chance in a share of samples.

/// Returns the median; without numbers, NaN. One disturbed measurement hardly changes it.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Returns the mean.
pub fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// Returns the standard deviation of a sample, which needs two numbers.
pub fn deviation(numbers: &[f64]) -> f64 {
    let mean = mean(numbers);
    let squares: f64 = numbers.iter().map(|it| (it - mean).powi(2)).sum();
    (squares / (numbers.len() as f64 - 1.0)).sqrt()
}

/// Returns how far a share of samples, such as an accuracy, is off by chance: two standard deviations of a binomial distribution.
pub fn chance(share: f64, samples: usize) -> f64 {
    2.0 * (share * (1.0 - share) / samples as f64).sqrt()
}

/// Whether chance explains the difference between two shares that were measured on so many samples each.
pub fn chance_explains(shares: [f64; 2], samples: usize) -> bool {
    let [a, b] = shares.map(|share| chance(share, samples));
    (shares[0] - shares[1]).abs() <= a.hypot(b)
}

/// Returns the median over repetitions of the slowest rank's time. Each rank has measured every repetition.
pub fn slowest(ranks: &[impl AsRef<[f64]>]) -> f64 {
    let ranks = || ranks.iter().map(AsRef::as_ref);
    let times = ranks().map(<[f64]>::len).min().unwrap_or(0);
    median((0..times).map(|time| ranks().map(|rank| rank[time]).fold(0.0, f64::max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_means_and_deviations() {
        assert_eq!([median([9.0, 1.0, 2.0]), median([9.0, 1.0, 2.0, 4.0])], [2.0, 3.0]);
        assert_eq!(median([-7.5]), -7.5);
        assert!(median([]).is_nan());
        assert_eq!((mean(&[1.0, 2.0, 6.0]), deviation(&[4.0, 4.0])), (3.0, 0.0));
        assert_eq!(deviation(&[1.0, 2.0, 3.0]), 1.0);
        // The slowest rank counts each time.
        assert_eq!(slowest(&[[1.0, 9.0, 2.0], [3.0, 1.0, 8.0]]), 8.0);
    }

    #[test]
    fn a_share_of_many_samples_depends_less_on_chance() {
        assert_eq!([chance(0.5, 100), chance(0.5, 10_000), chance(1.0, 10)], [0.1, 0.01, 0.0]);
        let explained = |samples| chance_explains([0.5, 0.6], samples);
        assert!(explained(100) && !explained(1000));
    }
}
