//! `cargo course schedules`: stage 6's schedules, written down for the book's figure.

use anyhow::Context as _;
use course_tests::schedules::{Catalogue, picture};
use harness::report::line;

use crate::book_file::store;

pub(crate) fn run() -> anyhow::Result<()> {
    let catalogue = Catalogue::make()?;
    let pictured = catalogue.pictured().context("a schedule that is not there")?;
    store("data/pipeline-schedules.json", &catalogue.json()?)?;
    store("figures/pipeline-schedules.svg", &picture(&pictured))?;
    let schedules = catalogue.plans.iter().filter(|plan| plan.timeline().is_some()).count();
    let refused = catalogue.plans.len() - schedules;
    line(format_args!("{schedules} schedules, {refused} that cannot be had"))?;
    Ok(())
}
