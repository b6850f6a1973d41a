//! The book as mdBook built it: a page must not load anything from another host. A link may lead anywhere, but a browser does
//! not fetch it by itself.

use std::io;
use std::path::Path;

use super::page::line_of;
use super::{Found, files_below, relative};

/// mdBook's script names this host, and asks it only on pages with code that can be run.
const PLAYGROUND: &str = "play.rust-lang.org";

// Elements that fetch files, styles, and code that can be run.
pattern!(
    IN_PAGES,
    concat!(
        r#"(?is)<(?:link|script|img|image|iframe|source|video|audio|track|embed|object|use|input)\b"#,
        r#"[^>]*?\b(?:src|href|srcset|data|poster)\s*=\s*["']?\s*(?:https?:)?//"#,
        r#"|(?:url\(|@import)\s*["']?\s*(?:https?:)?//|class="[^"]*\bplayground\b[^"]*""#,
    )
);
pattern!(
    IN_SCRIPTS,
    concat!(
        r#"(?:\b(?:fetch\w*|import|importScripts|Worker|EventSource|WebSocket|sendBeacon)\(|\.src\s*=)"#,
        r#"\s*["'`](?:https?:|wss?:)?//[\w.-]+"#,
    )
);

/// The files that the pages in a folder would fetch from another host.
pub fn check(folder: &Path) -> io::Result<Vec<String>> {
    let mut found = Found::default();
    for (ending, pattern) in
        [("html", &IN_PAGES), ("css", &IN_PAGES), ("svg", &IN_PAGES), ("js", &IN_SCRIPTS)]
    {
        let files = files_below(folder, ending);
        if ending == "html" && files.is_empty() {
            return Err(io::Error::other(format!("there are no pages in {}", folder.display())));
        }
        for path in files {
            let text = std::fs::read_to_string(&path)?;
            let asks =
                pattern.find_iter(&text).filter(|found| !found.as_str().ends_with(PLAYGROUND));
            for asks in asks {
                let what = format_args!("`{}` asks another host", asks.as_str());
                found.at(relative(&path, folder), line_of(&text, asks.start()), what);
            }
        }
    }
    Ok(found.0)
}

#[test]
fn what_a_browser_would_fetch_is_found() {
    for text in [
        "<link rel=\"stylesheet\"\n href=\"https://example.com/a.css\">",
        "<img alt='' src=//example.com/a.png>",
        "<pre><pre class=\"playground\"><code>",
        "@font-face { src: url(https://example.com/a.woff2) }",
    ] {
        assert!(IN_PAGES.is_match(text), "{text}");
    }
    assert!(!IN_PAGES.is_match("<a href=\"https://example.com\">there</a><script src='a.js'>"));
    assert!(IN_SCRIPTS.is_match("fetch('https://example.com/a.json')"));
    assert!(!IN_SCRIPTS.is_match("// https://example.com\nfetch('toc.html')"));
}
