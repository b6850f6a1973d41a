//! A number that comes from a data file names its field, in a comment behind the number:
//! `0.591 ms<!-- data: gpu-convolutions.json/products/6/ways/0/3 -->`. The comment holds the file's name in `book/data` and a
//! JSON pointer.
//!
//! A page may round the number and write it in another unit: the number has to have the field's first digits.

use std::io;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::page::line_of;
use super::{Book, Problem};

/// A number, perhaps a unit, and the field.
static MARKED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(\d[\d,]*(?:\.\d+)?)?[^\d<>]*<!--\s*data:\s*([^\s/]+)(/\S+)\s*-->")
        .expect("a valid expression")
});

/// Numbers that are not those of the fields that they name.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for page in book.pages() {
        for found in MARKED.captures_iter(&page.text) {
            let (written, file, field) = (found.get(1), &found[2], &found[3]);
            let path = book.root.join("book/data").join(file);
            let data: Value = match std::fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Value::Null,
                text => serde_json::from_slice(&text?)?,
            };
            let written = written.map_or("", |number| number.as_str());
            let what = match data.pointer(field).and_then(Value::as_f64) {
                Some(value) if begins_with(value, written) => continue,
                Some(value) => format!("\"{written}\" is not {value}, as {file}{field} has it"),
                None => format!("there is no number {file}{field} in book/data"),
            };
            let line = line_of(&page.text, found.get(2).map_or(0, |file| file.start()));
            problems.push(Problem::on(page, line, what));
        }
    }
    Ok(problems)
}

/// Whether a value, rounded to as many digits as are written, has these digits.
fn begins_with(value: f64, written: &str) -> bool {
    let digits: String = written.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_start_matches('0');
    let Some(behind_the_point) = digits.len().checked_sub(1) else { return false };
    let scientific = format!("{value:.behind_the_point$e}");
    let mantissa = scientific.split('e').next().unwrap_or_default();
    mantissa.chars().filter(char::is_ascii_digit).eq(digits.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_may_be_rounded_and_have_another_unit() {
        for written in ["27.08", "27.1", "27", "2.7", "0.02708"] {
            assert!(begins_with(0.02708, written), "{written}");
        }
        for written in ["27.0", "28", "2.8", "0", ""] {
            assert!(!begins_with(0.02708, written), "{written}");
        }
        assert!(begins_with(3210.0, "3,210"));
    }
}
