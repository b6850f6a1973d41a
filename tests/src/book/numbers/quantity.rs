//! Numbers with units, as people write them.

use std::fmt;
use std::sync::LazyLock;

use regex::Regex;

/// What a unit measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// In seconds.
    Time,
    /// In bytes.
    Size,
    /// In bytes, operations or images a second.
    Rate,
    /// As a fraction of 1.
    Ratio,
}

/// Every unit, what it measures, and how much it is. Those that begin with another stand before it.
const UNITS: [(&str, Kind, f64); 33] = [
    ("images/s", Kind::Rate, 1.0),
    ("images a second", Kind::Rate, 1.0),
    ("TFLOP/s", Kind::Rate, 1e12),
    ("GFLOP/s", Kind::Rate, 1e9),
    ("GiB/s", Kind::Rate, 1073741824.0),
    ("GB/s", Kind::Rate, 1e9),
    ("MB/s", Kind::Rate, 1e6),
    ("GiB", Kind::Size, 1073741824.0),
    ("MiB", Kind::Size, 1048576.0),
    ("KiB", Kind::Size, 1024.0),
    ("GB", Kind::Size, 1e9),
    ("MB", Kind::Size, 1e6),
    ("KB", Kind::Size, 1e3),
    ("kB", Kind::Size, 1e3),
    ("milliseconds", Kind::Time, 1e-3),
    ("microseconds", Kind::Time, 1e-6),
    ("nanoseconds", Kind::Time, 1e-9),
    ("seconds", Kind::Time, 1.0),
    ("second", Kind::Time, 1.0),
    ("minutes", Kind::Time, 60.0),
    ("minute", Kind::Time, 60.0),
    ("hours", Kind::Time, 3600.0),
    ("hour", Kind::Time, 3600.0),
    ("s/epoch", Kind::Time, 1.0),
    ("ms", Kind::Time, 1e-3),
    ("µs", Kind::Time, 1e-6),
    ("μs", Kind::Time, 1e-6),
    ("ns", Kind::Time, 1e-9),
    ("s", Kind::Time, 1.0),
    ("percent", Kind::Ratio, 0.01),
    ("per cent", Kind::Ratio, 0.01),
    ("%", Kind::Ratio, 0.01),
    ("×", Kind::Ratio, 1.0),
];

/// A number, the number that a range leads to, a unit.
static QUANTITY: LazyLock<Regex> = LazyLock::new(|| {
    let units: Vec<String> = UNITS.iter().map(|(unit, ..)| regex::escape(unit)).collect();
    let number = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?";
    Regex::new(&format!(
        r"({number})(?:\s*(?:–|to|and|or)\s*({number}))?[\s-]?({})",
        units.join("|")
    ))
    .expect("a valid expression")
});

/// A number with three decimals or more: nobody writes so many who has not read them somewhere.
static EXACT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\d+\.\d{3,}").expect("a valid expression"));

/// A number as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Number {
    text: String,
    pub(super) value: f64,
    /// What one more in the last digit that counts would add.
    pub(super) last_place: f64,
}

/// A number with its unit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Quantity {
    pub(super) number: Number,
    pub(super) kind: Kind,
    unit: &'static str,
    /// How much one of the unit is.
    pub(super) scale: f64,
}

impl Number {
    /// All of a text that have three decimals or more and are no part of a link or a version.
    pub(super) fn all_exact_in(text: &str) -> Vec<Self> {
        let outside = |found: &regex::Match<'_>| {
            let before = text[..found.start()].chars().next_back();
            let after = text[found.end()..].chars().next();
            let part_of_a_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '/' | '-');
            !before.is_some_and(|c| part_of_a_name(c) || c == '.')
                && !after.is_some_and(part_of_a_name)
        };
        EXACT.find_iter(text).filter(outside).filter_map(|n| Self::parse(n.as_str())).collect()
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let plain = text.trim_end_matches(',').replace(',', "");
        let value: f64 = plain.parse().ok()?;
        let (digits, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
        let places = match digits.split_once('.') {
            Some((_, decimals)) => -(decimals.len() as i32),
            // Zeros at the end of a whole number only hold places.
            None if value != 0.0 => (digits.len() - digits.trim_end_matches('0').len()) as i32,
            None => 0,
        };
        let last_place = 10f64.powi(places + exponent.parse::<i32>().ok()?);
        Some(Self { text: plain, value, last_place })
    }

    /// How many digits count: 2 in 0.29, in 15 and in 3,200.
    pub(super) fn digits(&self) -> usize {
        let digits = (self.value.abs() / self.last_place).round().to_string();
        digits.trim_start_matches('0').len()
    }

    /// Whether it is what somebody would write who rounds `value`.
    pub(super) fn rounds(&self, value: f64) -> bool {
        (value - self.value).abs() <= 0.500_001 * self.last_place
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Quantity {
    /// All of a text, in order; of a range, both ends.
    pub(super) fn all_in(text: &str) -> Vec<Self> {
        let mut found = Vec::new();
        for captures in QUANTITY.captures_iter(text) {
            let whole = captures.get(0).map_or(0..0, |whole| whole.range());
            let before = text[..whole.start].chars().next_back();
            let after = text[whole.end..].trim_start_matches(' ').chars().next();
            let at_once = text[whole.end..].chars().next();
            // A part of a name, of a longer word, or of a shape such as 3×3.
            if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '×'))
                || at_once.is_some_and(|c| c.is_alphanumeric() && !whole_unit(&captures[3]))
                || (&captures[3] == "×"
                    && (at_once.is_some_and(char::is_alphanumeric)
                        || after.is_some_and(|c| c.is_ascii_digit())))
            {
                continue;
            }
            let Some(&(unit, kind, scale)) = UNITS.iter().find(|(unit, ..)| *unit == &captures[3])
            else {
                continue;
            };
            for number in [captures.get(1), captures.get(2)].into_iter().flatten() {
                if let Some(number) = Number::parse(number.as_str()) {
                    found.push(Self { number, kind, unit, scale });
                }
            }
        }
        found
    }

    /// Whether both are written with the same digits in the same unit.
    pub(super) fn is_written_like(&self, other: &Self) -> bool {
        (&self.number.text, self.kind, self.scale) == (&other.number.text, other.kind, other.scale)
    }
}

/// Signs, which end where they end; letters may go on to make another word.
fn whole_unit(unit: &str) -> bool {
    matches!(unit, "%" | "×")
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        Quantity::all_in(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn numbers_with_units_are_found() {
        assert_eq!(told("27.1 ms, then 1,201\u{a0}ms"), ["27.1 ms", "1201 ms"]);
        assert_eq!(
            told("0.25–0.29× of it; 2 to 3 minutes"),
            ["0.25 ×", "0.29 ×", "2 minutes", "3 minutes"]
        );
        assert_eq!(
            told("9830 images/s at 6.1 s/epoch, 87 %."),
            ["9830 images/s", "6.1 s/epoch", "87 %"]
        );
        assert_eq!(
            told("a 16 MiB tensor, a 5-second limit, 2× as fast"),
            ["16 MiB", "5 second", "2 ×"]
        );
    }

    #[test]
    fn shapes_names_and_counts_are_no_quantities() {
        for text in ["a 3×3 kernel", "2 × 1 threads", "f32 sums", "3 stages", "v1.2 s", "4 samples"]
        {
            assert_eq!(told(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn exact_numbers_are_found_outside_of_links_and_versions() {
        let exact =
            |text| Number::all_exact_in(text).iter().map(Number::to_string).collect::<Vec<_>>();
        assert_eq!(exact("1.9364 and 0.6813, then 2.303."), ["1.9364", "0.6813", "2.303"]);
        for text in ["0.29 of it", "arxiv.org/abs/1811.06965", "1.2.3456", "v2.11.012"] {
            assert_eq!(exact(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn the_digits_that_count() {
        let digits = |text| Number::parse(text).unwrap().digits();
        assert_eq!(
            ["0.29", "15", "3,200", "6", "0.05", "100", "12.0"].map(digits),
            [2, 2, 2, 1, 1, 1, 3]
        );
        assert!(Number::parse("0.29").unwrap().rounds(0.2851));
        assert!(!Number::parse("0.28").unwrap().rounds(0.2851));
        assert!(Number::parse("1,200").unwrap().rounds(1201.0));
    }
}
