//! `cargo course scaling`: stage 7's cost model, written down for the book's figure.

use anyhow::Context as _;
use course_tests::scaling::{Catalogue, Measurement, picture};
use harness::report::line;

use crate::book_file::store;
use crate::checkout;

/// What was measured, as `cargo course figures --measure cost-model-cpu` stores it.
const MEASURED: &str = "data/cost-model-cpu.json";

pub(crate) fn run() -> anyhow::Result<()> {
    let path = checkout::root().join("book").join(MEASURED);
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| {
        format!("{}: `cargo course figures --measure cost-model-cpu` makes it", path.display())
    })?;
    let measurement = Measurement::parse(&text).with_context(|| format!("{}", path.display()))?;
    let catalogue = Catalogue::make(&measurement)?;
    let pictured = catalogue.pictured().context("a curve that is not there")?;
    store("data/scaling.json", &catalogue.json()?)?;
    store("figures/scaling.svg", &picture(&pictured))?;
    let measured = catalogue.panels.iter().filter(|panel| panel.here.is_some()).count();
    let on_paper = catalogue.panels.len() - measured;
    line(format_args!("{on_paper} charts on paper, {measured} of what was measured"))?;
    Ok(())
}
