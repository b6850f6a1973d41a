//! Drawings stand inside their pages, so that they follow its theme: what they may not do there.

use std::io;
use std::sync::LazyLock;

use regex::Regex;

use super::{Book, Problem, relative};

/// What makes a browser fetch something.
static FETCHED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r#"(?:href|src)\s*=\s*["'](?:[^"'#])|url\(\s*["']?[^#"'\s]|<script|<image|<style|@import"#,
    )
    .expect("a valid expression")
});

pub fn check(book: &Book) -> io::Result<Vec<Problem>> {
    let used = book.included();
    let mut problems = Vec::new();
    for path in book.files("figures", "svg")? {
        let file = relative(&path, &book.root);
        let text = std::fs::read_to_string(&path)?;
        let mut wrong = |what: &str| problems.push(Problem::of(file.clone(), what));
        if !used.contains(&file) {
            wrong("no page includes this figure");
        }
        if !text.starts_with("<svg") || !text.trim_end().ends_with("</svg>") {
            wrong("an included drawing is <svg …> to </svg> and nothing else");
        }
        if text.trim_end().lines().any(|line| line.trim().is_empty()) {
            wrong("a blank line: in a page, Markdown would take the drawing to end there");
        }
        if !text.contains("role=\"img\"")
            || !(text.contains("<title>") || text.contains("aria-label"))
        {
            wrong("readers who cannot see it need role=\"img\" and a <title> or an aria-label");
        }
        if FETCHED.is_match(&text) {
            wrong("fetches something, or has a script or a style: a drawing is only a drawing");
        }
    }
    Ok(problems)
}
