//! Listings without their common indentation: a preprocessor of mdBook.
//!
//! mdBook includes the lines of an anchor as they are. A method would be four columns to the right of a function.

use anyhow::{Context as _, ensure};
use regex::Captures;
use serde_json::Value;

pattern!(LISTING, r"(?ms)^(```rust[^\n]*\n)(.*?)^```");

/// Dedents the listings of a book. `message` is mdBook's: context and book, as JSON. Returns the book as JSON.
pub fn preprocess(message: &str) -> anyhow::Result<String> {
    let (_, mut book): (Value, Value) = serde_json::from_str(message)
        .context("a message of mdBook was expected: [context, book]")?;
    ensure!(dedent_pages(&mut book) > 0, "mdBook's message has no page");
    Ok(book.to_string())
}

/// Dedents the listings of all pages below `value`, and returns the number of pages.
fn dedent_pages(value: &mut Value) -> usize {
    match value {
        Value::Array(values) => values.iter_mut().map(dedent_pages).sum(),
        Value::Object(fields) => {
            let mut pages = 0;
            if let Some(Value::String(page)) = fields.get_mut("content") {
                *page = dedent(page);
                pages = 1;
            }
            pages + fields.values_mut().map(dedent_pages).sum::<usize>()
        }
        _ => 0,
    }
}

/// Removes the common indentation of each listing of a page.
fn dedent(page: &str) -> String {
    let shifted = |listing: &Captures<'_>| {
        let code = &listing[2];
        let indentation = |line: &str| line.len() - line.trim_start().len();
        let written = code.lines().filter(|line| !line.trim().is_empty());
        let common = written.map(indentation).min().unwrap_or(0);
        let lines: Vec<&str> =
            code.split_inclusive('\n').map(|line| line.get(common..).unwrap_or("\n")).collect();
        format!("{}{}```", &listing[1], lines.concat())
    };
    LISTING.replace_all(page, shifted).into_owned()
}

#[test]
fn listings_lose_their_common_indentation() {
    let others = "```console\n    a table\n```\n\n```rust\nfn one() {\n    2\n}\n```\n";
    let method = "```rust\n    fn one() {\n\n        2\n    }\n```\n";
    let message =
        serde_json::json!([{}, {"items": [{"Chapter": {"content": others.to_owned() + method}}]}]);
    let book: Value = serde_json::from_str(&preprocess(&message.to_string()).unwrap()).unwrap();
    let dedented = others.to_owned() + "```rust\nfn one() {\n\n    2\n}\n```\n";
    assert_eq!(book["items"][0]["Chapter"]["content"], dedented);
    assert!(preprocess("[{}, {}]").is_err());
}
