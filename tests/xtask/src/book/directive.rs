//! mdBook's directives, as they stand in a page.

use std::sync::LazyLock;

use regex::Regex;

use super::page::line_of;

/// A directive of mdBook: `{{#include path:anchor}}`.
#[derive(Clone, Debug)]
pub struct Include {
    pub line: usize,
    /// `include`, or another word.
    pub kind: String,
    pub path: String,
    pub anchor: Option<String>,
}

static DIRECTIVE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(\\?)\{\{\s*#([a-z_]+)\s+([^}:\s]*)(?::([^}]*?))?\s*\}\}")
        .expect("a valid expression")
});
pub(super) fn directives(text: &str) -> Vec<Include> {
    let all = DIRECTIVE.captures_iter(text).filter(|found| found[1].is_empty());
    all.map(|found| Include {
        line: line_of(text, found.get(0).map_or(0, |whole| whole.start())),
        kind: found[2].to_owned(),
        path: found[3].to_owned(),
        anchor: found.get(4).map(|anchor| anchor.as_str().to_owned()),
    })
    .collect()
}

/// The one directive that a piece of text consists of.
pub(super) fn only_directive(text: &str) -> Option<Include> {
    let found = DIRECTIVE.find(text)?;
    (found.as_str() == text.trim() && !text.trim().starts_with('\\'))
        .then(|| directives(text).swap_remove(0))
}
