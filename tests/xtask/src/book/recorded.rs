//! Below each output a page says where and when it was recorded, and how long its command took: a line of
//! `book/outputs/recorded.html`, which `cargo xtask outputs` writes.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::outputs::{FOLDER, Recording, Recordings};
use super::page::Page;
use super::{Book, Problem, stem};
use crate::html::escaped;

/// Below the checkout's root.
pub const FILE: &str = "book/outputs/recorded.html";

/// The whole file: a paragraph for each output, between anchors of its name.
pub fn file(recordings: &Recordings) -> String {
    let paragraph = |(name, recording): (&str, &Recording)| {
        format!(
            "<!-- ANCHOR: {name} -->\n<p class=\"recorded\">{}</p>\n<!-- ANCHOR_END: {name} -->\n",
            escaped(&caption(recording))
        )
    };
    recordings.iter().map(paragraph).collect()
}

/// `Recorded on AMD EPYC, 2 cores, 2026-11-23, in 83 s.`
fn caption(recording: &Recording) -> String {
    let Recording { machine, date, seconds, .. } = recording;
    let date = date.as_ref().map_or_else(String::new, |date| format!(", {date}"));
    let time = if *seconds < 1.0 { "less than 1 s".to_owned() } else { format!("{seconds:.0} s") };
    format!("Recorded on {}{date}, in {time}.", machine.short())
}

/// A file that is not of these recordings, and outputs without their line below.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    if let Ok(recordings) = Recordings::load(&book.root) {
        let written = match std::fs::read_to_string(book.root.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        if written != file(&recordings) {
            let what = format!(
                "does not go with {}: `cargo xtask outputs NAME` writes both",
                Recordings::FILE
            );
            problems.push(Problem::of(FILE, what));
        }
    }
    for page in book.pages() {
        problems.extend(without_line(book, page));
        problems.extend(without_end(page));
    }
    Ok(problems)
}

/// The outputs of a page that the next include, behind the end of their code block, says nothing of. A later block of
/// the same output needs no such line.
fn without_line(book: &Book, page: &Page) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut told_above = BTreeSet::new();
    for (nth, include) in page.includes.iter().enumerate() {
        let Some(path) = book.resolve(page, &include.path) else { continue };
        if path == Path::new(FILE) || !path.starts_with(FOLDER) {
            continue;
        }
        let name = stem(&path);
        let next = page.includes.get(nth + 1);
        // More lines of the same output follow in the same block, perhaps behind a line that leaves some out.
        let goes_on = next.is_some_and(|next| {
            next.anchor.is_some()
                && next.line <= include.line + 2
                && book.resolve(page, &next.path).as_ref() == Some(&path)
        });
        if goes_on {
            continue;
        }
        let told = next.is_some_and(|next| {
            next.line == include.line + 2
                && book.resolve(page, &next.path).as_deref() == Some(Path::new(FILE))
                && next.anchor.as_deref() == Some(&*name)
        });
        if told {
            told_above.insert(path);
        } else if !told_above.contains(&path) {
            let what = format!(
                "the line behind this output's code block says where it was recorded: \
                 {{{{#include ../outputs/recorded.html:{name}}}}}"
            );
            problems.push(Problem::on(page, include.line, what));
        }
    }
    problems
}

/// Lines about recordings that do not end: they are HTML, and what follows is too, up to a blank line.
fn without_end(page: &Page) -> Vec<Problem> {
    let lines: Vec<&str> = page.text.lines().collect();
    let followed = lines.windows(2).enumerate().filter(|(_, pair)| {
        pair[0].starts_with("{{#include ../outputs/recorded.html:") && !pair[1].trim().is_empty()
    });
    let what = "a blank line is missing before this line: it would be shown as it is written";
    followed.map(|(nth, _)| Problem::on(page, nth + 2, what)).collect()
}
