//! The book as mdBook built it: a page must not load anything from another host.
//!
//! Links that a reader follows may lead anywhere. What a browser fetches by itself may not.

use std::io;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::{Problem, files_below, relative};

/// Elements that fetch what they name, and styles in them.
static IN_PAGES: LazyLock<Regex> = LazyLock::new(|| {
    expression(concat!(
        r#"(?is)<(?:link|script|img|image|iframe|source|video|audio|track|embed|object|use|input)\b"#,
        r#"[^>]*?\b(?:src|href|srcset|data|poster)\s*=\s*["']?\s*(?:https?:)?//"#,
    ))
});
static IN_STYLES: LazyLock<Regex> =
    LazyLock::new(|| expression(r#"(?i)(?:url\(|@import)\s*["']?\s*(?:https?:)?//"#));
static IN_SCRIPTS: LazyLock<Regex> = LazyLock::new(|| {
    expression(concat!(
        r#"(?:\b(?:fetch\w*|import|importScripts|Worker|EventSource|WebSocket|sendBeacon)\(|\.src\s*=)"#,
        r#"\s*["'`](?:https?:|wss?:)?//([\w.-]+)"#,
    ))
});
/// Code that can be run: mdBook's script then asks the Rust playground what it knows.
static PLAYGROUND: LazyLock<Regex> =
    LazyLock::new(|| expression(r#"class="[^"]*\bplayground\b[^"]*""#));

/// mdBook's script names this host, and asks it only on pages with code that can be run.
const PLAYGROUND_HOST: &str = "play.rust-lang.org";

fn expression(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid expression")
}

/// What the pages in a folder would fetch from elsewhere.
pub fn check(folder: &Path) -> io::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let pages = files_below(folder, "html")?;
    if pages.is_empty() {
        let none = format!("there are no pages in {}", folder.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, none));
    }
    let styles = files_below(folder, "css")?;
    let drawings = files_below(folder, "svg")?;
    let scripts = files_below(folder, "js")?;
    for path in pages.iter().chain(&styles).chain(&drawings).chain(&scripts) {
        let text = std::fs::read_to_string(path)?;
        let mut found = |at: usize, what: &str| {
            let line = text[..at].matches('\n').count() + 1;
            let file = relative(path, folder);
            problems.push(Problem { file, line: Some(line), what: what.to_owned() });
        };
        if scripts.contains(path) {
            for call in IN_SCRIPTS.captures_iter(&text).filter(|call| &call[1] != PLAYGROUND_HOST) {
                found(call.get(0).map_or(0, |call| call.start()), "asks another host");
            }
            continue;
        }
        for rule in [&IN_PAGES, &IN_STYLES] {
            for element in rule.find_iter(&text) {
                found(element.start(), "is loaded from another host");
            }
        }
        for block in PLAYGROUND.find_iter(&text) {
            found(block.start(), "code that can be run asks another host");
        }
    }
    Ok(problems)
}
