//! Axes with round numbers.

/// The values from one end of an axis to the other, and the numbers along the axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The name, for example `epoch`. It may be empty.
    pub name: String,
    /// The values with a number, and their text.
    pub ticks: Vec<(f64, String)>,
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    /// An axis with multiples of a round number, at most `gaps` distances apart.
    pub fn linear(name: &str, low: f64, high: f64, gaps: u32) -> Self {
        let unit = if high > low { spacing(high - low, gaps) } else { 1.0 };
        Self::with_multiples(name, (low, high), unit)
    }

    /// An axis from a little below the lowest value to a little above the highest. No value is below 0.
    pub fn around(name: &str, values: impl IntoIterator<Item = f64>, gaps: u32) -> Self {
        let finite: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let Some(low) = finite.iter().copied().reduce(f64::min) else {
            return Self::linear(name, 0.0, 1.0, gaps);
        };
        let high = finite.into_iter().fold(low, f64::max);
        // If all values are equal, the axis still needs a length.
        let room = (0.06 * (high - low)).max(0.01);
        Self::linear(name, (low - room).max(0.0), high + room, gaps)
    }

    /// An axis of whole numbers, from 1 to `last`: 1, and multiples of a round number.
    pub fn counting(name: &str, last: f64, gaps: u32) -> Self {
        let mut axis = Self::with_multiples(name, (1.0, last), spacing(last, gaps).max(1.0));
        axis.ticks.retain(|(value, _)| *value > 1.0);
        axis.ticks.insert(0, (1.0, "1".to_owned()));
        axis
    }

    /// An axis on which equal factors have equal lengths, with some values.
    pub fn factors(name: &str, (low, high): (f64, f64), ticks: Vec<(f64, String)>) -> Self {
        Self { name: name.to_owned(), ticks, low, high, logarithmic: true }
    }

    /// An axis on which equal factors have equal lengths, with powers of ten. Its ends are powers of ten if `whole`.
    pub fn decades(name: &str, (low, high): (f64, f64), whole: bool) -> Self {
        let (first, last) = (low.log10().floor() as i32, high.log10());
        let last = if whole { last.ceil() } else { last.floor() } as i32;
        let powers = (first..=last).map(|power| 10f64.powi(power));
        let high = if whole { 10f64.powi(last) } else { high };
        let ticks = powers.map(|power| (power, label(power, power))).collect();
        Self::factors(name, (10f64.powi(first), high), ticks)
    }

    fn with_multiples(name: &str, (low, high): (f64, f64), unit: f64) -> Self {
        // The end may be a multiple, but for the last bit.
        let (first, last) = ((low / unit).ceil() as i64, (high / unit + 1e-9).floor() as i64);
        let multiples = (first..=last).map(|index| index as f64 * unit);
        let ticks = multiples.map(|multiple| (multiple, label(multiple, unit))).collect();
        Self { name: name.to_owned(), ticks, low, high, logarithmic: false }
    }

    /// The place of a value, from 0 to 1. An axis of a single value has this value in the middle.
    pub fn place(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.logarithmic { value.ln() } else { value };
        let (low, high) = (scale(self.low), scale(self.high));
        if high > low { (scale(value) - low) / (high - low) } else { 0.5 }
    }
}

/// Returns the distance between round numbers: 1, 2 or 5 times a power of ten, at most `gaps` times in `length`.
pub fn spacing(length: f64, gaps: u32) -> f64 {
    let raw = length / f64::from(gaps);
    let magnitude = 10f64.powf(raw.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    factors.iter().map(|f| f * magnitude).find(|unit| *unit >= raw).unwrap_or(raw)
}

/// Formats a multiple of `unit` with commas between the thousands, or as a power of ten if it is large.
fn label(number: f64, unit: f64) -> String {
    if number >= 1e6 {
        return format!("{number:.1e}").replace(".0e", "e");
    }
    let text = format!("{number:.*}", (-unit.log10().floor()).max(0.0) as usize);
    match text.find('.').unwrap_or(text.len()) {
        digits @ 4.. => format!("{},{}", &text[..digits - 3], &text[digits - 3..]),
        _ => text,
    }
}

/// Formats a number with three digits and without zeros at the end: `129`, `46.3`, `0.0042`.
pub fn short(number: f64) -> String {
    let digits = 2.0 - number.abs().max(1e-9).log10().floor();
    let rounded = format!("{number:.*}", digits.max(0.0) as usize).parse().unwrap_or(number);
    rounded.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> String {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn numbers_are_round() {
        let linear = |low, high, gaps| labels(&Axis::linear("", low, high, gaps));
        assert_eq!(linear(0.0, 80.0, 8), "0 10 20 30 40 50 60 70 80");
        assert_eq!(linear(0.0, 1.0, 8), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(linear(0.0, 1_540.0, 7), "0 500 1,000 1,500");
        assert_eq!(linear(0.83, 0.91, 5), "0.84 0.86 0.88 0.90");
        assert_eq!(linear(0.0, 3e30, 4), "0 1e30 2e30 3e30");
        let units = [0.9, 9.0, 24.0, 51.0, 730.0].map(|it| spacing(it, 5));
        assert_eq!(units, [0.2, 2.0, 5.0, 20.0, 200.0]);
        let short = [129.4, 46.3, 15.0, 0.0042, 0.0].map(short);
        assert_eq!(short, ["129", "46.3", "15", "0.0042", "0"]);
        // Epochs are whole and begin with the first.
        for (last, expected) in [
            (1.0, "1"),
            (2.0, "1 2"),
            (10.0, "1 2 3 4 5 6 7 8 9 10"),
            (30.0, "1 5 10 15 20 25 30"),
            (100.0, "1 10 20 30 40 50 60 70 80 90 100"),
            (20_000.0, "1 2,000 4,000 6,000 8,000 10,000 12,000 14,000 16,000 18,000 20,000"),
        ] {
            assert_eq!(labels(&Axis::counting("epoch", last, 10)), expected);
        }
    }

    #[test]
    fn places_are_in_proportion() {
        let axis = Axis::decades("", (0.03, 400.0), true);
        assert_eq!(labels(&axis), "0.01 0.1 1 10 100 1,000");
        let places = axis.ticks.iter().map(|(value, _)| axis.place(*value));
        for (index, place) in places.enumerate() {
            assert!((place - index as f64 / 5.0).abs() < 1e-9, "{place}");
        }
        let open = Axis::decades("", (0.03, 400.0), false);
        assert_eq!((labels(&open).as_str(), open.place(400.0)), ("0.01 0.1 1 10 100", 1.0));
        // Values have room, and a single value lies in the middle.
        let axis = Axis::around("", [0.5, f64::NAN, 0.6, f64::INFINITY], 5);
        assert!(axis.place(0.5) > 0.0 && axis.place(0.6) < 1.0 && axis.place(0.55) - 0.5 < 1e-9);
        assert_eq!(Axis::around("", [0.7, 0.7], 5).place(0.7), 0.5);
        assert_eq!(Axis::counting("", 1.0, 10).place(1.0), 0.5);
        assert_eq!(labels(&Axis::around("", [], 5)), "0.0 0.2 0.4 0.6 0.8 1.0");
    }
}
