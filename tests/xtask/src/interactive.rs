//! The book's interactive figures: the data of each, and a picture for paper and for browsers without scripts.

use anyhow::Context as _;
use serde::Serialize;

use crate::{pictures, schedules, sharded, steps};

/// An interactive figure.
#[derive(Clone, Debug)]
pub struct Interactive {
    /// The names and the texts of the data and of the picture, in this order. A name begins below the book's folder.
    pub files: Vec<(&'static str, String)>,
    /// The content of the data, in a line.
    pub content: String,
}

/// Records the messages of each all-reduce, for the stepper.
pub fn steps() -> anyhow::Result<Interactive> {
    let catalogue = steps::Catalogue::record()?;
    let runs = &catalogue.runs;
    let is_pictured = |run: &&steps::Run| (&*run.algorithm, run.ranks) == steps::PICTURED;
    let pictured = runs.iter().find(is_pictured).context("a run that is not recorded")?;
    let messages: usize = runs.iter().flat_map(|run| &run.steps).map(Vec::len).sum();
    Ok(Interactive {
        files: vec![
            ("data/all-reduce-steps.json", one_a_line(&catalogue, "algorithm")?),
            ("figures/ring-steps.svg", pictures::steps(pictured)),
        ],
        content: format!("{} all-reduces, {messages} messages", runs.len()),
    })
}

/// Generates every pipeline schedule.
pub fn schedules() -> anyhow::Result<Interactive> {
    let catalogue = schedules::catalogue()?;
    let had = catalogue.plans.iter().filter(|plan| plan.step.is_some()).count();
    let refused = catalogue.plans.len() - had;
    Ok(Interactive {
        files: vec![
            ("data/pipeline-schedules.json", one_a_line(&catalogue, "kind")?),
            ("figures/pipeline-schedules.svg", pictures::schedules()?),
        ],
        content: format!("{had} schedules, {refused} that cannot be had"),
    })
}

/// Generates the list of every strategy of sharded state.
pub fn sharded() -> anyhow::Result<Interactive> {
    let catalogue = sharded::catalogue()?;
    Ok(Interactive {
        files: vec![
            ("data/sharded-lists.json", one_a_line(&catalogue, "kind")?),
            ("figures/strategies.svg", pictures::strategies()?),
        ],
        content: format!("{} lists", catalogue.plans.len()),
    })
}

/// JSON for a file that people compare line by line: every object that begins with this field begins a line.
fn one_a_line(whole: &impl Serialize, field: &str) -> serde_json::Result<String> {
    let begins = format!("{{\"{field}\"");
    let text = serde_json::to_string(whole)?;
    Ok(text.replace(&begins, &format!("\n{begins}")) + "\n")
}
