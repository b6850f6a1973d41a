//! Rules about code blocks: a page includes code from a file that compiles and runs, or marks the code as a sketch.

use super::commands::MARKS;
use super::page::{Block, Include, Page};
use super::{Book, Wrong, outputs};

/// Marks the lines of an output that a page leaves out.
const GAP: &str = "…";

/// The most lines of an output that a page shows before an explanation.
const LONGEST: usize = 25;

/// Code blocks that hold something else.
pub(super) fn check(book: &Book, page: &Page) -> Wrong {
    page.blocks.iter().filter_map(|block| wrong(book, page, block)).collect()
}

/// The line that is wrong, and why.
fn wrong(book: &Book, page: &Page, block: &Block) -> Option<(usize, String)> {
    let of_block = |what: &str| Some((block.line, what.to_owned()));
    if block.lines().next().is_none() {
        return of_block("an empty code block");
    }
    if let Some(marks) = block.marks() {
        let unknown = marks.iter().find(|mark| !MARKS.contains(&mark.as_str()));
        return match unknown {
            Some(mark) => of_block(&format!("`{mark}`: known marks are {}", MARKS.join(", "))),
            None => wrong_console(book, page, block),
        };
    }
    let shown =
        |(line, _)| page.include_on(line).filter(|it| !it.file.starts_with(outputs::FOLDER));
    let (line, _) = block.lines().find(|line| shown(*line).is_none())?;
    let what = "is no code of the course: include it by its anchor, write `sketch` after the language, or \
                show an output in a `console` block";
    let is_sketch = block.info.iter().any(|word| word == "sketch");
    (!is_sketch).then(|| (line, format!("this {what}")))
}

/// Checks a console block: lines of one recorded output, or commands without an output.
fn wrong_console(book: &Book, page: &Page, block: &Block) -> Option<(usize, String)> {
    let file = page.output(block).map(|include| &include.file);
    let belongs = |(line, text): &(usize, &str)| match file {
        None => text.starts_with("$ "),
        Some(file) => {
            text.trim() == GAP || page.include_on(*line).is_some_and(|it| it.file == *file)
        }
    };
    if let Some((line, text)) = block.lines().find(|line| !belongs(line)) {
        let what = "is neither a command (`$ …`) nor of one recorded output: `cargo xtask outputs` records \
                    what a command prints, and a page includes it";
        return Some((line, format!("\"{text}\" {what}")));
    }
    let begins = page.includes.iter().find(|include| Some(&include.file) == file)?;
    if begins.lines().is_some_and(|(line, _)| line != 1) {
        let what = "the page shows this output without its command: begin with line 1";
        return Some((begins.line, what.to_owned()));
    }
    let whole = book.text(file?).map_or(0, |text| text.lines().count());
    let lines =
        |part: &Include| part.lines().map_or(whole, |(from, to)| (to + 1).saturating_sub(from));
    let parts = block.lines().filter_map(|(line, _)| page.include_on(line));
    let length: usize = parts.map(lines).sum();
    (length > LONGEST).then(|| {
        let what = format!("explain after {LONGEST} at most, and go on in a later block");
        (block.line, format!("{length} lines of output: {what}"))
    })
}
