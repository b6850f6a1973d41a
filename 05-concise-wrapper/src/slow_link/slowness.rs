//! How slow a link is, and how a flag says so.

use std::ops::RangeInclusive;
use std::time::Duration;

/// As flags count them.
const MEGABYTE: f64 = 1_048_576.0;

/// What a flag may ask for, in MB a second.
const SPEEDS: RangeInclusive<f64> = 0.001..=1e6;

/// How slow a link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowness {
    /// What every message takes at the least.
    pub latency: Duration,
    /// Bytes in a second.
    pub bandwidth: f64,
}

impl Slowness {
    /// So many MB in a second, of 2²⁰ bytes each.
    pub fn of_megabytes(megabytes: f64, latency: Duration) -> Self {
        Self { latency, bandwidth: megabytes * MEGABYTE }
    }

    /// How many MB in a second.
    pub fn megabytes(&self) -> f64 {
        self.bandwidth / MEGABYTE
    }

    /// How long so many bytes are on their way, beside the latency; for ever, where no bandwidth is left.
    pub fn takes(&self, bytes: usize) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.bandwidth).unwrap_or(Duration::MAX)
    }
}

/// Reads how many MB in a second a flag asks for.
///
/// # Errors
///
/// With what would be right.
pub fn parse_speed(argument: &str) -> Result<f64, String> {
    match argument.parse() {
        Ok(speed) if SPEEDS.contains(&speed) => Ok(speed),
        _ => Err(format!(
            "this is a number of megabytes in a second, from {} to {}, such as 25",
            SPEEDS.start(),
            SPEEDS.end()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_a_link_without_bandwidth_nothing_arrives() {
        let slow = |bandwidth| Slowness { latency: Duration::ZERO, bandwidth };
        assert_eq!(slow(2e6).takes(1_000_000), Duration::from_millis(500));
        for none in [0.0, -1.0, f64::NAN, 1e-300] {
            assert_eq!(slow(none).takes(1), Duration::MAX, "{none}");
        }
    }

    #[test]
    fn a_flag_is_a_number_of_megabytes() {
        assert_eq!(parse_speed("25").map(|speed| speed * MEGABYTE), Ok(26_214_400.0));
        assert_eq!(Slowness::of_megabytes(25.0, Duration::ZERO).megabytes(), 25.0);
        for wrong in ["", "fast", "0", "-1", "nan", "inf", "1e-300"] {
            assert!(parse_speed(wrong).is_err(), "{wrong}");
        }
    }
}
