//! The learner's lists as a schedule of stage 6: checked, drawn, and executed by two devices.

use std::error::Error;

use harness::report::{columns, line, paragraph};
use model_parallel::layers::Layers;
use model_parallel::partition::{Cost, cut};
use model_parallel::pipeline::{Action, Kind, Schedule, predict};

use super::pipeline::{DEVICES, MICRO_BATCHES, Pipeline, checked, measure, show};

/// A stage, the number of stages and of micro-batches; the actions of the stage.
pub type Answer = fn(usize, usize, usize) -> Vec<Action>;

/// The stages and micro-batches of the exercise's drawing.
const DRAWN: (usize, usize) = (3, 4);

/// Shows the lists in the exercise's drawing, and a training by them. Fails when the answer panics.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let yours = |(stages, micro_batches)| {
        let lists = Schedule::of(stages, micro_batches, |it| answer(it, stages, micro_batches));
        checked(lists).map_err(|law| {
            format!("The checker refuses your lists for {stages} stages and {micro_batches} micro-batches: {law}. So no device runs them.")
        })
    };
    let (drawn, found) = match (yours(DRAWN), yours((DEVICES, MICRO_BATCHES))) {
        (Ok(drawn), Ok(found)) => (drawn, found),
        (Err(refusal), _) | (_, Err(refusal)) => return Ok(paragraph(refusal)?),
    };
    let unit = Cost { forward: 1.0, backward: 1.0, ..Cost::default() };
    let bubble = |checked| predict(checked, &vec![unit; DRAWN.0], 0.0);
    let (timeline, theirs) =
        (bubble(&drawn)?, bubble(&checked(Kind::OneFOneB.schedule(DRAWN.0, DRAWN.1)?)?)?);
    line(timeline.drawing(1.0, columns()).trim_end())?;
    let [yours, theirs] = [timeline, theirs].map(|it| 100.0 * it.bubble());
    line(format_args!("your bubble is {yours:.0} %, ours {theirs:.0} %\n"))?;

    let layers = Layers::dense(&[784, 512, 512, 512, 512, 512, 512, 10])?;
    let costs = measure(&layers)?;
    let cut = cut(&costs.iter().map(Cost::total).collect::<Vec<_>>(), DEVICES)?;
    let [gpipe, ours] = [Kind::GPipe, Kind::OneFOneB]
        .map(|kind| Ok::<_, Box<dyn Error>>(checked(kind.schedule(DEVICES, MICRO_BATCHES)?)?));
    let (gpipe, ours) = (gpipe?, ours?);
    let with = |checked| Pipeline { layers: &layers, cut: &cut, checked };
    show(
        "ch06_1f1b",
        &costs,
        &[("yours", with(&found)), ("GPipe, ours", with(&gpipe)), ("1F1B, ours", with(&ours))],
    )
}
