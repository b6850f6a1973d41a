//! A number with a unit was measured: it is in an output or in the data, or its paragraph says where it is
//! from, in a comment: `<!-- source: … -->`.
//!
//! So was a number with three decimals or more, such as a loss, whether it has a unit or not.
//!
//! A page may round. It may say "27.1 ms" where the data has 0.02708 seconds, "29 %" or "3.5×" where it has
//! a ratio of 0.2851; but a number of which only one digit counts would fit too much, and has to be in an
//! output just so.

mod measured;
mod quantity;

use std::io;

use super::{Book, Problem};
use measured::Measured;
use quantity::{Number, Quantity};

/// Numbers of which nobody knows where they are from.
///
/// # Errors
///
/// When an output or a data file cannot be read.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let measured = Measured::load(book)?;
    let mut problems = Vec::new();
    for page in book.pages() {
        for prose in page.prose.iter().filter(|prose| !prose.has_source) {
            for quantity in Quantity::all_in(&prose.text) {
                if !measured.has(&quantity) {
                    let what = format!(
                        "\"{quantity}\" is in no output and in no data file: take it from one, or \
                         write <!-- source: … --> into the paragraph"
                    );
                    problems.push(Problem::on(page, prose.line, what));
                }
            }
            for number in Number::all_exact_in(&prose.text) {
                if !measured.has_exact(&number) {
                    let what = format!(
                        "{number} is in no output: take it from one, or write <!-- source: … --> into the paragraph"
                    );
                    problems.push(Problem::on(page, prose.line, what));
                }
            }
        }
    }
    Ok(problems)
}
