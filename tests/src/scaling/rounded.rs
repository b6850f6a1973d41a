//! Numbers with as many digits as a figure can show.

use serde::{Serialize, Serializer};

/// A number of four significant digits. Whole numbers are written without a point.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rounded(f64);

impl Rounded {
    /// The nearest one.
    pub fn of(number: f64) -> Self {
        // What was written by Rust is read by Rust.
        Self(format!("{number:.3e}").parse().unwrap_or(number))
    }

    /// Its value.
    pub fn value(self) -> f64 {
        self.0
    }
}

impl Serialize for Rounded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(number) = *self;
        if number.fract() == 0.0 && (0.0..1e15).contains(&number) {
            serializer.serialize_u64(number as u64)
        } else {
            serializer.serialize_f64(number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_are_kept() {
        let written = |number| serde_json::to_string(&Rounded::of(number)).unwrap();
        assert_eq!(written(1.0 / 3.0), "0.3333");
        assert_eq!(written(123_456.0), "123500");
        assert_eq!(written(0.000_123_46), "0.0001235");
        assert_eq!(written(0.0), "0");
        assert_eq!(written(2.000_04), "2");
    }
}
