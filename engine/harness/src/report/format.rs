//! Numbers as text.

/// Formats a number with commas between the thousands: `60,000`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// Formats a count with its noun: `1 core`, `2 cores`, `2 batches`, `2 processes`.
pub fn counted(number: usize, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if ["tch", "ss"].iter().any(|hiss| noun.ends_with(hiss)) => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// Joins names. Of more than four names, only the first two and the last are shown: `cpu:0, cpu:1, …, cpu:7`.
pub fn listed(names: &[String]) -> String {
    match names {
        [first, second, _, _, .., last] if names.len() > 4 => {
            format!("{first}, {second}, …, {last}")
        }
        _ => names.join(", "),
    }
}

/// Names as in a sentence: `a`, `a and b`, `a, b and c`.
pub fn joined(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = names.into_iter().collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// The indices of the rows of a list that are shown: all rows if there are at most `most`. Otherwise the first rows, a
/// gap (`None`), and the last row.
pub fn shown_rows(rows: usize, most: usize) -> Vec<Option<usize>> {
    if rows <= most {
        return (0..rows).map(Some).collect();
    }
    (0..most.saturating_sub(2)).map(Some).chain([None, Some(rows - 1)]).collect()
}

/// Formats an accuracy: `0.842`, or a dash where nothing was tested.
pub fn accuracy(accuracy: f64) -> String {
    if accuracy.is_nan() { "–".to_owned() } else { format!("{accuracy:.3}") }
}

/// Formats a number as a person would write it: `0.3`, `128`, `1e30`, `2.5e-7`. At most 15 digits are kept.
pub fn number(number: f64) -> String {
    // Products such as 3 · 0.1 differ from 15 digits in the last bit. The largest numbers are rounded to infinity.
    let rounded = format!("{number:.14e}").parse().ok().filter(|it: &f64| it.is_finite());
    let number = rounded.unwrap_or(number);
    match number.abs() {
        size if size == 0.0 || (1e-4..1e7).contains(&size) => format!("{number}"),
        _ => format!("{number:e}"),
    }
}

/// Formats a number of seconds with about two digits: `12.3`, `0.17`, `0.0042`, `0.00062`.
pub fn seconds(seconds: f64) -> String {
    // No clock measures less than a nanosecond.
    let two_digits = (1.0 - seconds.log10().floor()).clamp(1.0, 9.0);
    let decimals = if seconds > 0.0 { two_digits as usize } else { 4 };
    format!("{seconds:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for exact in [0.1, 1e-300, 123_456_789.125, 0.0, f64::MAX] {
            assert_eq!(number(exact).parse::<f64>().unwrap().to_bits(), exact.to_bits());
        }
        let numbers =
            [3.0 * 0.1, 128.0, 1e30, 2.5e-7, 0.0, -0.02, 1e-4, 9_999_999.0, f64::INFINITY];
        let expected = "0.3 128 1e30 2.5e-7 0 -0.02 0.0001 9999999 inf";
        assert_eq!(numbers.map(number).join(" "), expected);
        let two_digits = [12.34, 1.234, 0.166, 0.0123, 0.00421, 0.000_619, 0.000_062].map(seconds);
        assert_eq!(two_digits.join(" "), "12.3 1.2 0.17 0.012 0.0042 0.00062 0.000062");
        let ends = [100.0, 1.0, 0.1, 0.01, 0.001, 0.000_1, 1e-12, 0.0].map(seconds);
        assert_eq!(ends.join(" "), "100.0 1.0 0.10 0.010 0.0010 0.00010 0.000000000 0.0000");
        let apart = [0, 7, 999, 1_000, 60_000, 1_234_567].map(thousands);
        assert_eq!(apart, ["0", "7", "999", "1,000", "60,000", "1,234,567"]);
    }

    #[test]
    fn a_noun_has_its_plural_and_a_long_list_shows_its_ends() {
        let cores = [0, 1, 2].map(|number| counted(number, "core"));
        assert_eq!(cores, ["0 cores", "1 core", "2 cores"]);
        let two = ["batch", "process", "epoch"].map(|noun| counted(2, noun));
        assert_eq!(two, ["2 batches", "2 processes", "2 epochs"]);
        let names: Vec<String> = ('a'..='e').map(String::from).collect();
        assert_eq!(listed(&names[..4]), "a, b, c, d");
        assert_eq!(listed(&names), "a, b, …, e");
        assert_eq!(listed(&[]), "");
        let sentence = |count| joined(names[..count].iter().cloned());
        assert_eq!([0, 1, 2, 3].map(sentence), ["", "a", "a and b", "a, b and c"]);
        assert_eq!(shown_rows(3, 3), [Some(0), Some(1), Some(2)]);
        assert_eq!(shown_rows(9, 4), [Some(0), Some(1), None, Some(8)]);
        assert_eq!(shown_rows(0, 4), []);
    }
}
