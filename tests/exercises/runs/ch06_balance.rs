//! The learner's cut under a pipeline of stage 6.

use std::error::Error;
use std::ops::Range;

use harness::report::{line, paragraph};
use model_parallel::layers::Layers;
use model_parallel::partition::{Cost, cut};
use model_parallel::pipeline::Kind;

use super::pipeline::{DEVICES, MICRO_BATCHES, Pipeline, checked, measure, show};

/// Costs of layers, and the number of stages; the layers of each stage.
pub type Answer = fn(&[u64], usize) -> Vec<Range<usize>>;

/// A stack whose first layers cost the most.
const WIDTHS: [usize; 9] = [784, 1024, 512, 256, 256, 256, 128, 128, 10];

/// Shows the cut of a measured model, and its training. Fails when the answer panics.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let layers = Layers::dense(&WIDTHS)?;
    let costs = measure(&layers)?;
    let micros: Vec<u64> = costs.iter().map(|cost| (1e6 * cost.total()).round() as u64).collect();
    let exact: Vec<f64> = micros.iter().map(|&cost| cost as f64).collect();
    paragraph(format_args!(
        "the layers' costs in µs: {}",
        micros.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
    ))?;
    for stages in [DEVICES, 4] {
        let (yours, ours) = (answer(&micros, stages), cut(&exact, stages)?);
        line(format_args!("{stages} stages, yours: {}", told(&yours, &micros)))?;
        line(format_args!("{stages} stages, ours:  {}", told(&ours, &micros)))?;
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
    let checked = checked(Kind::OneFOneB.schedule(DEVICES, MICRO_BATCHES)?)?;
    let with = |cut| Pipeline { layers: &layers, cut, checked: &checked };
    show(
        "ch06_balance",
        &costs,
        &[("yours", with(&yours)), ("equally many", with(&even)), ("ours", with(&ours))],
    )
}

/// `0..1 1..8, the largest stage takes 2140 µs`
fn told(cut: &[Range<usize>], costs: &[u64]) -> String {
    let ranges: Vec<String> = cut.iter().map(|range| format!("{range:?}")).collect();
    let sizes =
        cut.iter().map(|range| costs.get(range.clone()).unwrap_or_default().iter().sum::<u64>());
    format!("{}; the largest takes {} µs", ranges.join(" "), sizes.max().unwrap_or(0))
}
