//! The book in the checkout that this tool was built in: `cargo xtask book` builds it, and `steps`, `schedules` and
//! `scaling` write the data and pictures of its interactive figures.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use harness::report::{file, line};
use xtask::book::{built, dedent};
use xtask::scaling::Measurement;
use xtask::{root, scaling, schedules, steps};

use crate::shell;

/// Where `book/book.toml` has the pages made.
const PAGES: &str = "target/book/html";

const LIMIT: Duration = Duration::from_secs(300);

/// What was measured, as `cargo xtask figures --measure cost-model-cpu` stores it.
const MEASURED: &str = "data/cost-model-cpu.json";

/// Builds the book, and believes mdBook only so far.
pub(crate) fn build() -> anyhow::Result<()> {
    let root = root();
    let built = shell::run("mdbook build book", &root, LIMIT)?;
    line(built.output.trim_end())?;
    if !built.status.success() {
        bail!(
            "`mdbook build book` failed ({}); `cargo xtask install-tools --check` says whether its \
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

/// Dedents the listings of the book that mdBook writes to standard input. mdBook may ask first: `supports html`? The exit code
/// answers that every renderer is supported.
pub(crate) fn dedent(question: &[String]) -> anyhow::Result<()> {
    if question.is_empty() {
        line(dedent::preprocess(&std::io::read_to_string(std::io::stdin())?)?)?;
    }
    Ok(())
}

/// Records what each all-reduce sends, for the stepper.
pub(crate) fn write_steps() -> anyhow::Result<()> {
    let catalogue = steps::Catalogue::record()?;
    let (algorithm, ranks) = steps::PICTURED;
    let pictured = catalogue.run(algorithm, ranks).context("a run that is not recorded")?;
    store("data/all-reduce-steps.json", &catalogue.json()?)?;
    store("figures/ring-steps.svg", &steps::picture(pictured))?;
    let messages: usize = catalogue.runs.iter().flat_map(|run| &run.steps).map(Vec::len).sum();
    line(format_args!("{} all-reduces, {messages} messages", catalogue.runs.len()))?;
    Ok(())
}

pub(crate) fn write_schedules() -> anyhow::Result<()> {
    let catalogue = schedules::Catalogue::make()?;
    let pictured = catalogue.pictured().context("a schedule that is not there")?;
    store("data/pipeline-schedules.json", &catalogue.json()?)?;
    store("figures/pipeline-schedules.svg", &schedules::picture(&pictured))?;
    let had = catalogue.plans.iter().filter(|plan| plan.timeline().is_some()).count();
    let refused = catalogue.plans.len() - had;
    line(format_args!("{had} schedules, {refused} that cannot be had"))?;
    Ok(())
}

pub(crate) fn write_scaling() -> anyhow::Result<()> {
    let path = root().join("book").join(MEASURED);
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| {
        format!("{}: `cargo xtask figures --measure cost-model-cpu` makes it", path.display())
    })?;
    let measurement = Measurement::parse(&text).with_context(|| format!("{}", path.display()))?;
    let catalogue = scaling::Catalogue::make(&measurement)?;
    let pictured = catalogue.pictured().context("a curve that is not there")?;
    store("data/scaling.json", &catalogue.json()?)?;
    store("figures/scaling.svg", &scaling::picture(&pictured))?;
    let measured = catalogue.panels.iter().filter(|panel| panel.here.is_some()).count();
    let on_paper = catalogue.panels.len() - measured;
    line(format_args!("{on_paper} charts on paper, {measured} of what was measured"))?;
    Ok(())
}

fn store(name: &str, text: &str) -> anyhow::Result<()> {
    write(name, text)?;
    Ok(line(format_args!("wrote book/{name}"))?)
}

pub(crate) fn write(name: &str, text: &str) -> anyhow::Result<()> {
    let path = root().join("book").join(name);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    file::write(&path, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("{}", path.display()))
}
