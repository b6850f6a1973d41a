//! The index of exercises has every exercise once, in the order of the course.

use std::io;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::page::Page;
use super::{Book, Problem, exercises};

pub const FILE: &str = "exercises.md";

/// Has an entry for each exercise, in the order of the course.
const ENTRIES: &str = "tests/exercises/Cargo.toml";

static ENTRY: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"\bname = "(ch\d\d_\w+)""#).expect("a valid expression"));

/// The first row of the index that is not the exercise whose turn it is, and rows that name two.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let entries = match std::fs::read_to_string(book.root.join(ENTRIES)) {
        // No exercises, no index.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let expected: Vec<&str> =
        ENTRY.captures_iter(&entries).map(|found| found.extract::<1>().1[0]).collect();
    let Some(page) = book.page(Path::new(FILE)) else {
        return Ok(vec![Problem::of("book/src", format!("there is no index, {FILE}"))]);
    };
    let rows = rows(page);
    let mut problems = Vec::new();
    for (line, names) in &rows {
        if let Some(other) = names.iter().find(|name| **name != names[0]) {
            let what = format!("the row of {} names {other}", names[0]);
            problems.push(Problem::on(page, *line, what));
        }
    }
    for position in 0..expected.len().max(rows.len()) {
        let (entry, row) = (expected.get(position), rows.get(position));
        let (line, found) = match row {
            Some((_, names)) if entry == Some(&names[0]) => continue,
            Some((line, names)) => (Some(*line), names[0]),
            None => (None, "the end"),
        };
        let entry = entry.unwrap_or(&"the end");
        let what = format!("here {found}, but {ENTRIES} has {entry} next");
        problems.push(Problem { file: page.path(), line, what });
        break;
    }
    Ok(problems)
}

/// The lines of tables that name exercises, and the names.
fn rows(page: &Page) -> Vec<(usize, Vec<&str>)> {
    let lines = (1..).zip(page.text.lines()).filter(|(_, text)| text.starts_with('|'));
    let rows = lines.map(|(line, text)| {
        let names = exercises::NAME.find_iter(text).map(|name| name.as_str()).collect();
        (line, names)
    });
    rows.filter(|(_, names): &(_, Vec<&str>)| !names.is_empty()).collect()
}
