//! Rules about exercises: an exercise names its page, the page names the exercise, and the index has all.

use std::path::Path;

use itertools::Itertools as _;

use super::page::Page;
use super::{Book, Found, stem};

const FOLDER: &str = "tests/exercises";
const MANIFEST: &str = "tests/exercises/Cargo.toml";
const INDEX: &str = "exercises.md";

pattern!(PAGE, r"book/src/([\w-]+\.md)");
pattern!(NAME, r"\bch\d\d_[a-z0-9_]+\b");
pattern!(ENTRY, r#"\bname = "(ch\d\d_\w+)""#);

/// Exercises that their page does not name, and names of exercises that do not exist.
pub(super) fn exercises(book: &Book, found: &mut Found) {
    let files = book.files(FOLDER, "rs").filter(|(it, _)| it.parent() == Some(Path::new(FOLDER)));
    let files: Vec<(String, &str)> = files.map(|(file, text)| (stem(file), text)).collect();
    for (name, text) in &files {
        // The code below the comment may name other pages.
        let top: String = text.lines().take_while(|line| line.starts_with("//")).collect();
        let page = PAGE.captures(&top).map(|it| it[1].to_owned()).unwrap_or_default();
        let what = match book.page(&page) {
            Some(page) if NAME.find_iter(&page.text).any(|it| it.as_str() == name) => continue,
            Some(_) => format!("{page} does not name this exercise"),
            None => format!("its comment at the top names no page of the book, \"{page}\""),
        };
        found.at(format!("{FOLDER}/{name}.rs"), 1, what);
    }
    for page in book.pages() {
        for (line, text) in (1..).zip(page.text.lines()) {
            for named in NAME.find_iter(text).map(|it| it.as_str()) {
                if !files.iter().any(|(name, _)| name == named) {
                    found.on(page, line, format_args!("there is no exercise {named}"));
                }
            }
        }
    }
}

/// The first row of the index with another exercise than the order of the course has there.
pub(super) fn index(book: &Book, found: &mut Found) {
    let none = Page::new(INDEX.into(), String::new());
    let page = book.page(INDEX).unwrap_or(&none);
    let rows = (1..).zip(page.text.lines()).filter(|(_, text)| text.starts_with('|'));
    let rows = rows.filter_map(|(line, row)| Some((line, NAME.find(row)?.as_str())));
    let manifest = book.text(MANIFEST).unwrap_or_default();
    let entries = ENTRY.captures_iter(manifest).map(|found| found.extract::<1>().1[0]);
    let pairs = rows.zip_longest(entries).map(|pair| pair.or((1, "the end"), "the end"));
    if let Some(((line, row), entry)) = pairs.into_iter().find(|((_, row), entry)| row != entry) {
        found.on(page, line, format_args!("{row} is here, and {entry} is next in {MANIFEST}"));
    }
}
