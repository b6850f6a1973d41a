//! Code in a page is included from what compiles and runs, or says that it is a sketch.

use std::io;
use std::path::Path;

use super::commands::MARKS;
use super::directive::{Include, only_directive};
use super::outputs::FOLDER;
use super::page::{Block, Page};
use super::{Book, Problem};

/// Stands for lines of an output that a page leaves out.
const LEFT_OUT: &str = "…";

/// The lines of an output that a page shows before it explains them.
const LONGEST: usize = 25;

/// Code blocks that hold something else.
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

/// A recorded output, or commands without what they print.
fn wrong_console(book: &Book, page: &Page, block: &Block, marks: &[String]) -> Option<String> {
    if let Some(mark) = marks.iter().find(|mark| !MARKS.contains(&mark.as_str())) {
        return Some(format!("`{mark}` behind `console`: known are {}", MARKS.join(", ")));
    }
    if block.content.lines().any(|line| only_directive(line).is_some()) {
        return wrong_output(book, page, block);
    }
    let mut lines = block.content.lines().filter(|line| !line.trim().is_empty()).peekable();
    if lines.peek().is_none() {
        return Some("an empty console block".to_owned());
    }
    let typed = lines.find(|line| !line.starts_with("$ "));
    typed.map(|line| {
        format!(
            "\"{line}\" is no command (`$ …`): what a command prints is recorded in book/outputs by \
             `cargo xtask outputs` and included"
        )
    })
}

/// Lines of one recorded output; `…` stands for lines that are left out. The command comes first. A later block of the
/// page can go on with the same output, and begins with `…`.
fn wrong_output(book: &Book, page: &Page, block: &Block) -> Option<String> {
    let (mut shown, mut goes_on, mut length) = (None, false, 0);
    for line in block.content.lines().filter(|line| !line.trim().is_empty()) {
        if line.trim() == LEFT_OUT {
            goes_on |= shown.is_none();
            continue;
        }
        let Some(include) = only_directive(line) else {
            return Some(format!("\"{line}\" is in no recorded output"));
        };
        let file = book.resolve(page, &include.path)?;
        if !file.starts_with(FOLDER) {
            return Some(format!("{} is not below {FOLDER}", include.path));
        }
        if shown.is_none() && goes_on && !begins_above(book, page, block, &file) {
            return Some("nothing above shows the command of this output: begin there".to_owned());
        }
        if shown.is_none() && !goes_on && !shows_command(&include) {
            return Some("the first line of an output is its command: begin there".to_owned());
        }
        if shown.as_ref().is_some_and(|other| *other != file) {
            return Some("one block shows one output".to_owned());
        }
        length += number_of_lines(book, &file, include.anchor.as_deref());
        shown = Some(file);
    }
    (length > LONGEST).then(|| {
        format!(
            "{length} lines of output: explain after {LONGEST} at most, and go on in a later block"
        )
    })
}

/// How many lines of an output are shown. `lines` are the first and the last one, or one line.
fn number_of_lines(book: &Book, file: &Path, lines: Option<&str>) -> usize {
    let text = std::fs::read_to_string(book.root.join(file)).unwrap_or_default();
    let Some(lines) = lines else { return text.lines().count() };
    let (first, last) = lines.split_once(':').unwrap_or((lines, lines));
    let number = |text: &str| text.parse().unwrap_or(0_usize);
    (number(last) + 1).saturating_sub(number(first))
}

/// Whether the page shows the command of an output above a block.
fn begins_above(book: &Book, page: &Page, block: &Block, file: &Path) -> bool {
    page.includes.iter().any(|include| {
        include.line < block.line
            && shows_command(include)
            && book.resolve(page, &include.path).as_deref() == Some(file)
    })
}

fn shows_command(include: &Include) -> bool {
    include.anchor.as_deref().is_none_or(|lines| lines.split(':').next() == Some("1"))
}

fn is_output(path: &str) -> bool {
    path.split('/').rev().nth(1) == Some("outputs")
}
