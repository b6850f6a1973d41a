//! Code in a page is included from what compiles and runs, or says that it is a sketch.

use std::io;

use super::commands::MARKS;
use super::directive::only_directive;
use super::page::{Block, Page};
use super::{Book, Problem};

/// Code blocks that hold something else.
///
/// # Errors
///
/// None; the signature is that of all rules.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for page in book.pages() {
        for block in &page.blocks {
            if let Some(what) = wrong(book, page, block) {
                problems.push(Problem::on(page, block.line, what));
            }
        }
    }
    Ok(problems)
}

fn wrong(book: &Book, page: &Page, block: &Block) -> Option<String> {
    let Some(info) = &block.info else {
        return Some("indented code: put it between fences".to_owned());
    };
    let language = info.first().map_or("", String::as_str);
    if language == "console" {
        return wrong_console(book, page, block, &info[1..]);
    }
    if info.iter().any(|word| word == "sketch") {
        return None;
    }
    let lines = block.content.lines().filter(|line| !line.trim().is_empty());
    let mut includes = lines.map(only_directive).peekable();
    if includes.peek().is_none() {
        return Some("an empty code block".to_owned());
    }
    for include in includes {
        let Some(include) = include else {
            return Some(
                "this code is not from the course's crates: include it by its anchor, or write \
                 `sketch` behind the fence"
                    .to_owned(),
            );
        };
        if is_output(&include.path) {
            return Some(format!("{} is an output: show it in a `console` block", include.path));
        }
    }
    None
}

/// A whole recorded output, or commands without what they print.
fn wrong_console(book: &Book, page: &Page, block: &Block, marks: &[String]) -> Option<String> {
    if let Some(mark) = marks.iter().find(|mark| !MARKS.contains(&mark.as_str())) {
        return Some(format!("`{mark}` behind `console`: known are {}", MARKS.join(", ")));
    }
    if let Some(include) = only_directive(&block.content) {
        let file = book.resolve(page, &include.path)?;
        return match (file.starts_with("book/outputs"), include.anchor) {
            (true, None) => None,
            (true, Some(_)) => Some("a recorded output is shown whole".to_owned()),
            (false, _) => Some(format!("{} is not below book/outputs", include.path)),
        };
    }
    let mut lines = block.content.lines().filter(|line| !line.trim().is_empty()).peekable();
    if lines.peek().is_none() {
        return Some("an empty console block".to_owned());
    }
    let typed = lines.find(|line| !line.starts_with("$ "));
    typed.map(|line| {
        format!(
            "\"{line}\" is no command (`$ …`): what a command prints is recorded in book/outputs by \
             `cargo course outputs` and included whole"
        )
    })
}

fn is_output(path: &str) -> bool {
    path.split('/').rev().nth(1) == Some("outputs")
}
