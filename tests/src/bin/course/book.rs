//! `cargo course book`: builds the book, and believes mdBook only so far.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use course_tests::book::built;
use harness::report::line;

use crate::{checkout, shell};

/// Where `book/book.toml` has the pages made.
const PAGES: &str = "target/book/html";

const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn run() -> anyhow::Result<()> {
    let root = checkout::root();
    let built = shell::run("mdbook build book", &root, LIMIT)?;
    line(built.output.trim_end())?;
    if !built.status.success() {
        bail!(
            "`mdbook build book` failed ({}); `cargo course install-tools --check` says whether its \
             parts are there",
            built.status
        );
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
