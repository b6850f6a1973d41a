//! Numbers of the book's data: with few digits, and whole numbers without a point.

use serde::{Serialize, Serializer};

/// The nearest number of four significant digits: more than any measurement here is good for.
pub fn four_digits(number: f64) -> f64 {
    // Rust reads every number that Rust writes.
    format!("{number:.3e}").parse().unwrap_or(number)
}

/// Writes a whole number without a point, and any other as it is.
fn without_point<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let number = *number;
    if number.fract() == 0.0 && (0.0..1e15).contains(&number) {
        serializer.serialize_u64(number as u64)
    } else {
        serializer.serialize_f64(number)
    }
}

/// A number of [`four_digits`]. A whole number is written without a point.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct Rounded(#[serde(serialize_with = "without_point")] pub f64);

impl Rounded {
    pub fn of(number: f64) -> Self {
        Self(four_digits(number))
    }
}

#[test]
fn numbers_keep_four_digits_and_whole_ones_have_no_point() {
    let written = |number| serde_json::to_string(&Rounded::of(number)).unwrap();
    assert_eq!(written(1.0 / 3.0), "0.3333");
    assert_eq!(written(123_456.0), "123500");
    assert_eq!(written(0.0), "0");
    assert_eq!(written(2.000_04), "2");
    assert_eq!(written(-1.0), "-1.0");
    assert_eq!(written(1e20).parse(), Ok(1e20));
}
