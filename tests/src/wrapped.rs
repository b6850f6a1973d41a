//! Text that a program has wrapped to the terminal.

use predicates::prelude::{Predicate, predicate};

/// The text without line breaks.
pub fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether an output has a text, on one line or on several.
pub fn said(text: &str) -> impl Predicate<str> + use<> {
    let text = text.trim().to_owned();
    predicate::function(move |output: &str| in_one_line(output).contains(&text))
}
