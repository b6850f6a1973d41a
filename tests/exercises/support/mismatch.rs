//! Messages about answers that are no lists of numbers.

use std::fmt::Display;

/// Ends a check with a message: `what` is wrong, the expected value, the answer's value, and the law.
///
/// `expected` and `got` may have several lines.
#[track_caller]
pub fn fail(what: &str, expected: &str, got: &str, law: &str) -> ! {
    panic!("{}\n  law: {law}", beside(what, expected, got))
}

/// Ends a check with a message without a law.
#[track_caller]
pub fn fail_without_law(what: &str, expected: &str, got: &str) -> ! {
    panic!("{}", beside(what, expected, got))
}

fn beside(what: &str, expected: &str, got: &str) -> String {
    let lines = |text: &str| text.trim_end().replace('\n', "\n           ");
    format!("{what}\n  expected {}\n  got      {}", lines(expected), lines(got))
}

/// Numbers as `0 1 2`, or `(none)`.
pub fn in_a_row<N: Display>(numbers: &[N]) -> String {
    if numbers.is_empty() {
        return "(none)".to_owned();
    }
    numbers.iter().map(N::to_string).collect::<Vec<_>>().join(" ")
}

/// A number rounded to six digits behind the point.
pub fn short(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// Groups of numbers as `0 1 | 2 3 | (none)`.
pub fn in_groups<N: Display>(groups: &[Vec<N>]) -> String {
    groups.iter().map(|group| in_a_row(group)).collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn what_came_stands_below_what_was_expected() {
        let panic = catch_unwind(|| fail("shard 1 is wrong", "0 1\n2 3\n", "0 1", "once each"));
        assert_eq!(
            *panic.unwrap_err().downcast::<String>().unwrap(),
            "shard 1 is wrong\n  expected 0 1\n           2 3\n  got      0 1\n  law: once each"
        );
    }

    #[test]
    fn a_law_is_left_out_where_none_is_known() {
        let panic = catch_unwind(|| fail_without_law("no sums", "2", "none"));
        let message = *panic.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, "no sums\n  expected 2\n  got      none");
    }

    #[test]
    fn digits_that_are_rounding_go() {
        assert_eq!(short(0.1 + 0.2), 0.3);
    }

    #[test]
    fn groups_may_be_empty() {
        assert_eq!(in_groups(&[vec![0, 1], vec![2], vec![]]), "0 1 | 2 | (none)");
    }
}
