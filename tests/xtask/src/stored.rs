//! Files that `cargo xtask` writes into the book, as they are there.

use std::fs;

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::root;

/// JSON for a file that people compare line by line: every object that begins with this field begins a line.
pub fn one_a_line(whole: &impl Serialize, field: &str) -> serde_json::Result<String> {
    let begins = format!("{{\"{field}\"");
    let text = serde_json::to_string(whole)?;
    Ok(text.replace(&begins, &format!("\n{begins}")) + "\n")
}

/// The text of a file, named as from the book's folder.
pub fn in_the_book(name: &str) -> anyhow::Result<String> {
    let path = root().join("book").join(name);
    let text = fs::read_to_string(path).with_context(|| format!("book/{name}"))?;
    // Git may have been told to end lines as another system does.
    Ok(text.replace("\r\n", "\n"))
}

/// Checks that a file is what `command` would write today.
/// Fails when it is not: the first line that is another.
pub fn check_current(name: &str, now: &str, command: &str) -> anyhow::Result<()> {
    let old = in_the_book(name)?;
    let same = old.lines().zip(now.lines()).take_while(|(old, now)| old == now).count();
    ensure!(old == now, "book/{name}, line {}: run `{command}`", same + 1);
    Ok(())
}

/// Checks that a file can stand in a page, in a script, and makes it no longer than so many bytes.
pub fn check_fits_into_a_page(name: &str, most: usize) -> anyhow::Result<()> {
    let text = in_the_book(name)?;
    ensure!(text.len() < most, "book/{name}: {} bytes", text.len());
    ensure!(text.lines().all(|line| !line.is_empty()), "book/{name}: a blank line ends HTML");
    for end in ["</", "{{"] {
        ensure!(!text.contains(end), "book/{name}: {end} means something else in a script");
    }
    Ok(())
}
