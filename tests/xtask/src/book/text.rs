//! Rules about the text of pages: contents, links, comments, numbers.

use std::path::Path;

use regex::Captures;
use serde_json::Value;

use super::page::{FOLDER, Link, OUTPUTS, Page, line_of};
use super::{Book, CONTENTS, Found, Wrong};

// A number, perhaps a unit, and the field of a data file: `0.591 ms<!-- data: gpu.json/rows/6/3 -->`. The comment has the
// name of a file in `book/data`, and a JSON pointer.
pattern!(FROM_DATA, r"(\d[\d,]*(?:\.\d+)?)?[^\d<>]*<!--\s*data:\s*([^\s/]+)(/\S+)\s*-->");

// A part of a paragraph, and the recorded outputs that have its decimal numbers: `1.93<!-- output: ch04-default -->`.
pattern!(FROM_OUTPUTS, r"((?:[^\n]|\n[^\n])*?)<!-- output: ([\w -]+) -->");
pattern!(DECIMAL, r"\d+\.\d+(?:e-?\d+)?");

/// mdBook leaves out a page that the table of contents does not name.
pub(super) fn contents(book: &Book, found: &mut Found) {
    let listed: Vec<_> = book.contents.links.iter().map(|it| book.contents.leads_to(it)).collect();
    for page in book.pages().filter(|page| !listed.contains(&page.path())) {
        found.on(page, 1, format_args!("add this page to {CONTENTS}"));
    }
}

/// A link leads to a page or a heading of the book, or to the web.
pub(super) fn links(book: &Book, page: &Page) -> Wrong {
    page.links.iter().filter_map(|link| Some((link.line, dead(book, page, link)?))).collect()
}

fn dead(book: &Book, page: &Page, link: &Link) -> Option<String> {
    let target = &link.target;
    if target.is_empty() {
        let what = "this reference has no definition: write the target in parentheses";
        return Some(what.to_owned());
    }
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let file = page.leads_to(link);
    let Ok(name) = file.strip_prefix(FOLDER) else {
        return Some(format!("{target} is not in the book: link to a page of it, or to the web"));
    };
    let Some(other) = book.pages().find(|page| page.name == name) else {
        // Pictures and the like lie between the pages.
        return (!book.root.join(&file).is_file()).then(|| format!("there is no {target}"));
    };
    let (_, heading) = target.split_once('#')?;
    // An element of HTML may have the id.
    let is_there = other.headings.iter().any(|it| it == heading)
        || other.text.contains(&format!("id=\"{heading}\""));
    (!is_there).then(|| format!("{} has no heading #{heading}", other.path().display()))
}

impl Page {
    /// The file to which a link without a host leads, below the checkout's root.
    pub(super) fn leads_to(&self, link: &Link) -> std::path::PathBuf {
        match link.target.split('#').next().unwrap_or_default() {
            "" => self.path(),
            path => self.resolve(path),
        }
    }
}

/// A comment at the beginning of a line makes HTML of the whole line: a reader would see the asterisks and backticks.
pub(super) fn comments(_: &Book, page: &Page) -> Wrong {
    let what = "a comment begins this line, so Markdown takes it to be HTML: put it at the end";
    page.torn.iter().map(|line| (*line, what.to_owned())).collect()
}

/// A number that names a field of a data file has its first digits. The page may round it, and write another unit.
pub(super) fn numbers(book: &Book, page: &Page) -> Wrong {
    let wrong = |marked: Captures<'_>| {
        let (written, file, field) = (marked.get(1), &marked[2], &marked[3]);
        let written = written.map_or("", |number| number.as_str());
        let data = book.text(Path::new("book/data").join(file));
        let data: Value = data.and_then(|it| serde_json::from_str(it).ok()).unwrap_or_default();
        let line = line_of(&page.text, marked.get(2).map_or(0, |file| file.start()));
        let what = match data.pointer(field).and_then(Value::as_f64) {
            Some(value) if begins_with(value, written) => return None,
            Some(value) => format!("\"{written}\" is not {value}, as {file}{field} has it"),
            None => format!("book/data has no number {file}{field}"),
        };
        Some((line, what))
    };
    FROM_DATA.captures_iter(&page.text).filter_map(wrong).collect()
}

/// A decimal number that names outputs is in one of them.
pub(super) fn printed(book: &Book, page: &Page) -> Wrong {
    let output = |name: &str| book.text(Path::new(OUTPUTS).join(name).with_extension("txt"));
    let numbers = |text: &str| DECIMAL.find_iter(text).map(|it| it.as_str().to_owned()).collect();
    let wrong = |marked: Captures<'_>| {
        let printed: Vec<String> =
            marked[2].split(' ').filter_map(output).flat_map(numbers).collect();
        let written: Vec<String> = numbers(&marked[1]);
        let missing = written.into_iter().find(|number| !printed.contains(number))?;
        let line = line_of(&page.text, marked.get(2).map_or(0, |names| names.start()));
        Some((line, format!("{missing} is no number of {}", &marked[2])))
    };
    FROM_OUTPUTS.captures_iter(&page.text).filter_map(wrong).collect()
}

/// Whether a value, rounded to as many digits as are written, has these digits.
fn begins_with(value: f64, written: &str) -> bool {
    let digits: String = written.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_start_matches('0');
    let Some(after_the_point) = digits.len().checked_sub(1) else { return false };
    let scientific = format!("{value:.after_the_point$e}");
    let mantissa = scientific.split('e').next().unwrap_or_default();
    mantissa.chars().filter(char::is_ascii_digit).eq(digits.chars())
}

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
