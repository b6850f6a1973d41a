//! The learner's cut under a pipeline of stage 6.

use model_parallel::layers::Layers;
use model_parallel::partition::cut;
use model_parallel::{Cost, Kind};

use super::pipeline::{DEVICES, MICRO_BATCHES, Pipeline, checked, compare, measure};
use super::prelude::*;
pub use crate::checks::ch06_balance::Answer;

/// A stack whose first layers cost the most.
pub(super) const WIDTHS: [usize; 9] = [784, 1024, 512, 256, 256, 256, 128, 128, 10];

/// Shows the cut of a measured model, and its training. Fails when the answer panics.
pub fn run(answer: Answer) -> Run {
    let layers = Layers::dense(&WIDTHS)?;
    let costs = measure(&layers)?;
    let micros: Vec<u64> = costs.iter().map(|cost| (1e6 * cost.total()).round() as u64).collect();
    let exact: Vec<f64> = micros.iter().map(|&cost| cost as f64).collect();
    paragraph(format_args!("the layers' costs in µs: {}", in_a_row(&micros)))?;
    for stages in [DEVICES, 4] {
        for (name, cut) in [("yours:", answer(&micros, stages)), ("ours: ", cut(&exact, stages)?)] {
            let ranges = in_a_row(cut.iter().map(|range| format!("{range:?}")));
            let cost =
                |range: &Range<usize>| micros.get(range.clone()).unwrap_or_default().iter().sum();
            let largest: u64 = cut.iter().map(cost).max().unwrap_or(0);
            line(format_args!("{stages} stages, {name} {ranges}; the largest takes {largest} µs"))?;
        }
    }
    let (yours, ours) = (answer(&micros, DEVICES), cut(&exact, DEVICES)?);
    if yours.len() != DEVICES {
        return Ok(paragraph(format_args!(
            "Your cut has {} ranges for {DEVICES} stages, so no device runs it.",
            yours.len()
        ))?);
    }
    line("")?;
    let even = cut(&vec![1.0; layers.len()], DEVICES)?;
    let checked = &checked(Kind::OneFOneB.schedule(DEVICES, MICRO_BATCHES)?)?;
    let cuts = [("yours", &yours[..]), ("equally many", &even), ("ours", &ours)];
    let with = |(name, cut)| (name, Pipeline { layers: &layers, cut, checked });
    compare("ch06_balance", &costs, &cuts.map(with))
}
