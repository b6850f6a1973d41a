//! The book in the checkout that this tool was built in: `cargo xtask book` builds the book, and `steps`, `schedules` and
//! `sharded` write the data and pictures of its interactive figures.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use harness::report::line;
use xtask::book::built;
use xtask::interactive::Interactive;
use xtask::{root, stored};

use crate::shell;

/// Where `book/book.toml` has the pages made.
const PAGES: &str = "target/book/html";

const LIMIT: Duration = Duration::from_secs(300);

/// Builds the book, and believes mdBook only so far.
pub(crate) fn build() -> anyhow::Result<()> {
    let root = root();
    let built = shell::run("mdbook build book", &root, LIMIT)?;
    line(built.output.trim_end())?;
    if !built.status.success() {
        let remedy = "`cargo install-tools` installs what is missing";
        bail!("`mdbook build book` failed ({}); {remedy}", built.status);
    }
    // A file that an include does not find is only logged.
    if built.output.lines().any(|line| line.contains("ERROR")) {
        bail!("mdBook left something out");
    }
    let problems = built::check(&root.join(PAGES))?;
    problems.iter().try_for_each(line)?;
    if !problems.is_empty() {
        bail!("pages of the book load something from elsewhere");
    }
    let pages = Path::new(PAGES).join("index.html");
    Ok(line(format_args!("the book is at {}", pages.display()))?)
}

/// Writes the files of an interactive figure, and prints their content in a sentence.
pub(crate) fn write(Interactive { files, content }: Interactive) -> anyhow::Result<()> {
    for (name, text) in files {
        stored::write(&root().join("book").join(name), &text)?;
        line(format_args!("wrote book/{name}"))?;
    }
    Ok(line(content)?)
}
