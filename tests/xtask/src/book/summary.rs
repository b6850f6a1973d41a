//! Every page is in the table of contents, once, and the table has nothing else.

use std::io;
use std::path::Path;

use super::page::{Link, Page};
use super::{Book, Problem};

/// The table of contents.
pub const FILE: &str = "SUMMARY.md";

/// Pages that are missing in the table of contents, and entries without a page.
pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let Some(summary) = book.page(Path::new(FILE)) else {
        return Ok(vec![Problem::of("book/src", "there is no SUMMARY.md")]);
    };
    let mut problems = Vec::new();
    let mut listed: Vec<&Path> = Vec::new();
    for link in &summary.links {
        let target = link.target.as_deref().unwrap_or_default();
        let page = leads_to(link);
        if book.page(page).is_none() {
            problems.push(Problem::on(
                summary,
                link.line,
                format!("there is no page \"{target}\""),
            ));
        } else if listed.contains(&page) {
            problems.push(Problem::on(summary, link.line, format!("{target} is listed twice")));
        }
        listed.push(page);
    }
    for page in book.pages().filter(|page| !listed.contains(&page.name.as_path())) {
        problems.push(Problem::of(page.path(), "is not in SUMMARY.md"));
    }
    Ok(problems)
}

/// The pages that the table of contents leads to, in its order.
pub(super) fn pages(summary: &Page) -> Vec<&Path> {
    summary.links.iter().map(leads_to).collect()
}

fn leads_to(link: &Link) -> &Path {
    Path::new(link.target.as_deref().unwrap_or_default().trim_start_matches("./"))
}
