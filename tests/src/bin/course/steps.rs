//! `cargo course steps`: what each all-reduce sends, recorded for the book's stepper.

use anyhow::Context as _;
use course_tests::steps::{Catalogue, PICTURED, picture};
use harness::report::line;

use crate::book_file::store;

pub(crate) fn run() -> anyhow::Result<()> {
    let catalogue = Catalogue::record()?;
    let pictured = catalogue.run(PICTURED.0, PICTURED.1).context("a run that is not recorded")?;
    store("data/all-reduce-steps.json", &catalogue.json()?)?;
    store("figures/ring-steps.svg", &picture(pictured))?;
    let messages: usize = catalogue.runs.iter().flat_map(|run| &run.steps).map(Vec::len).sum();
    line(format_args!("{} all-reduces, {messages} messages", catalogue.runs.len()))?;
    Ok(())
}
