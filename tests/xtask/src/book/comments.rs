//! A comment at the beginning of a line makes HTML of the whole line: Markdown ends the paragraph there, and
//! shows the asterisks and backticks of what follows the comment as they are.

use std::io;

use super::{Book, Problem};

/// Comments that begin a line, with words behind them.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let what = "a comment begins this line, and Markdown takes all of it to be HTML: put the \
                comment at the end";
    let mut problems = Vec::new();
    for page in book.pages() {
        problems.extend(page.torn.iter().map(|line| Problem::on(page, *line, what)));
    }
    Ok(problems)
}
