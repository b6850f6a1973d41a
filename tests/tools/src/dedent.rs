//! Listings without their common indentation: a preprocessor of mdBook.
//!
//! mdBook includes the lines of an anchor as they are. A method would be four columns to the right of a function.

use serde_json::Value;

/// Dedents the listings of the book that mdBook writes to standard input.
pub(crate) fn run() -> Result<(), String> {
    let message = std::io::read_to_string(std::io::stdin()).map_err(|error| error.to_string())?;
    println!("{}", preprocess(&message)?);
    Ok(())
}

/// Dedents the listings of a book. `message` is mdBook's: context and book, as JSON. Returns the book as JSON.
fn preprocess(message: &str) -> Result<Value, String> {
    let told = |error| format!("a message of mdBook was expected, [context, book]: {error}");
    let (_, mut book): (Value, Value) = serde_json::from_str(message).map_err(told)?;
    match dedent_pages(&mut book) {
        0 => Err("mdBook's message has no page".to_owned()),
        _ => Ok(book),
    }
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
    let mut dedented = String::with_capacity(page.len());
    let mut lines = page.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        dedented.push_str(line);
        if line.starts_with("```rust") {
            let code = std::iter::from_fn(|| lines.next_if(|line| !line.starts_with("```")));
            let code: Vec<&str> = code.collect();
            let written = code.iter().filter(|line| !line.trim().is_empty());
            let indentations = written.map(|line| line.len() - line.trim_start().len());
            let common = indentations.min().unwrap_or(0);
            dedented.extend(code.iter().map(|line| line.get(common..).unwrap_or("\n")));
        }
    }
    dedented
}

#[test]
fn listings_lose_their_common_indentation() {
    let others = "```console\n    a table\n```\n\n```rust\nfn one() {\n    2\n}\n```\n";
    let method = "```rust,long\n    fn one() {\n\n        2\n    }\n```\nend";
    let message =
        serde_json::json!([{}, {"items": [{"Chapter": {"content": others.to_owned() + method}}]}]);
    let book = preprocess(&message.to_string()).unwrap();
    let dedented = others.to_owned() + "```rust,long\nfn one() {\n\n    2\n}\n```\nend";
    assert_eq!(book["items"][0]["Chapter"]["content"], dedented);
    assert!(preprocess("[{}, {}]").is_err());
}
