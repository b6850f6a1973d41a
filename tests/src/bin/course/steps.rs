//! `cargo course steps`: what each all-reduce sends, recorded for the book's stepper.

use anyhow::Context as _;
use course_tests::steps::{PICTURED, Trace, picture};
use single_gpu::report::{file, line};

use crate::checkout;

/// Runs all of them and stores their messages, and one of them as a picture.
pub(crate) fn run() -> anyhow::Result<()> {
    let trace = Trace::record()?;
    let pictured = trace.run(PICTURED.0, PICTURED.1).context("a run that is not recorded")?;
    store("data/all-reduce-steps.json", &trace.json()?)?;
    store("figures/ring-steps.svg", &picture(pictured))?;
    let messages: usize = trace.runs.iter().flat_map(|run| &run.steps).map(Vec::len).sum();
    line(format_args!("{} all-reduces, {messages} messages", trace.runs.len()))?;
    Ok(())
}

/// Writes a file of the book.
pub(crate) fn store(name: &str, text: &str) -> anyhow::Result<()> {
    let path = checkout::root().join("book").join(name);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    file::write(&path, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("{}", path.display()))?;
    line(format_args!("wrote book/{name}"))?;
    Ok(())
}
