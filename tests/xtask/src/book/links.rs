//! A link within the book leads to a page, and to a heading of it.

use std::io;

use super::page::{Link, Page};
use super::{Book, Problem};

pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for page in book.pages() {
        for link in &page.links {
            if let Some(what) = wrong(book, page, link) {
                problems.push(Problem::on(page, link.line, what));
            }
        }
    }
    Ok(problems)
}

fn wrong(book: &Book, page: &Page, link: &Link) -> Option<String> {
    let Some(target) = &link.target else {
        return Some(format!("{} has no definition", link.written));
    };
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = match target.split_once('#') {
        Some((path, heading)) => (path, Some(heading)),
        None => (target.as_str(), None),
    };
    let file = if path.is_empty() { Some(page.path()) } else { book.resolve(page, path) };
    let Some((file, name)) =
        file.as_ref().and_then(|file| Some((file, file.strip_prefix("book/src").ok()?)))
    else {
        return Some(format!(
            "{target} is not in the book, so readers of its pages do not have it"
        ));
    };
    let Some(other) = book.page(name) else {
        // Pictures and the like lie between the pages.
        let there = book.root().join(file).is_file();
        return (!there).then(|| format!("there is no {target}"));
    };
    let heading = heading.filter(|heading| !has_heading(other, heading))?;
    Some(format!("{} has no heading #{heading}", other.path().display()))
}

/// A heading, or an element that was given the name in HTML.
fn has_heading(page: &Page, id: &str) -> bool {
    page.headings.iter().any(|heading| heading == id) || page.text.contains(&format!("id=\"{id}\""))
}
