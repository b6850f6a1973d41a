//! Drawings are parts of their pages, and follow the theme of the page. A page sets limits to them.

use super::{Book, Found};

// What makes a browser fetch something, or acts on more than the drawing. All chapters are one page when they are printed, so an
// id would be there twice.
pattern!(
    REFUSED,
    r#"(?:href|src)\s*=\s*["'][^"'#]|url\(\s*["']?[^#"'\s]|<script|<image|<style|@import| id=""#,
);

pub(super) fn check(book: &Book, found: &mut Found) {
    for (file, text) in book.files("book/figures", "svg") {
        let text = text.trim_end();
        let named = text.contains("<title>") || text.contains("aria-label");
        for (wrong, what) in [
            (!book.includes(file), "no page includes this figure"),
            (
                !text.starts_with("<svg") || !text.ends_with("</svg>"),
                "an included drawing is <svg …> to </svg> and nothing else",
            ),
            (
                text.lines().any(|line| line.trim().is_empty()),
                "remove the blank line: in a page, Markdown takes the drawing to end there",
            ),
            (
                !named || !text.contains("role=\"img\""),
                "readers who cannot see it need role=\"img\", and a <title> or an aria-label",
            ),
            (
                REFUSED.is_match(text),
                "remove what fetches something, scripts, styles and ids: this is only a drawing",
            ),
        ] {
            if wrong {
                found.at(file, 1, what);
            }
        }
    }
}
