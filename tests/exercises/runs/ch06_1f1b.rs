//! The learner's lists as a schedule of stage 6: checked, drawn, and executed by two devices.

use std::fs;
use std::path::PathBuf;

use harness::report::{columns, file};
use model_parallel::layers::Layers;
use model_parallel::partition::cut;
use model_parallel::{Action, Checked, Cost, Kind, Schedule};

use super::pipeline::{DEVICES, MICRO_BATCHES, Pipeline, checked, compare, measure};
use super::prelude::*;
pub use crate::checks::ch06_1f1b::Answer;

#[path = "../../../06-model-parallel/examples/in_pytorch/runtime.rs"]
mod runtime;

/// The stages and micro-batches of the exercise's drawing, and of the training.
const SHAPES: [(usize, usize); 2] = [(3, 4), (DEVICES, MICRO_BATCHES)];

/// Shows the lists in the exercise's drawing, and a training by them. Fails when the answer panics.
pub fn run(answer: Answer) -> Run {
    let [drawn, found] = SHAPES.map(|(stages, micro_batches)| {
        let lists = Schedule::of(stages, micro_batches, |it| answer(it, stages, micro_batches));
        checked(lists).map_err(|law| {
            format!("The checker refuses your lists for {stages} stages and {micro_batches} micro-batches: {law}. So no device runs them.")
        })
    });
    let (drawn, found) = match (drawn, found) {
        (Ok(drawn), Ok(found)) => (drawn, found),
        (Err(refusal), _) | (_, Err(refusal)) => return Ok(paragraph(refusal)?),
    };
    if super::in_pytorch() {
        return execute_in_pytorch(&[drawn, found]);
    }
    let (stages, micro_batches) = SHAPES[0];
    let unit = vec![Cost { forward: 1.0, backward: 1.0, ..Cost::default() }; stages];
    let ours = checked(Kind::OneFOneB.schedule(stages, micro_batches)?)?;
    let (timeline, theirs) = (drawn.simulate(&unit, 0.0)?, ours.simulate(&unit, 0.0)?);
    line(timeline.drawing(1.0, columns()).trim_end())?;
    let [yours, theirs] = [timeline, theirs].map(|it| 100.0 * it.bubble());
    line(format_args!("your bubble is {yours:.0} %, ours {theirs:.0} %\n"))?;

    let layers = Layers::dense(&[784, 512, 512, 512, 512, 512, 512, 10])?;
    let costs = measure(&layers)?;
    let cut = cut(&costs.iter().map(Cost::total).collect::<Vec<_>>(), DEVICES)?;
    let gpipe = checked(Kind::GPipe.schedule(DEVICES, MICRO_BATCHES)?)?;
    let ours = checked(Kind::OneFOneB.schedule(DEVICES, MICRO_BATCHES)?)?;
    let lists = [("yours", &found), ("GPipe, ours", &gpipe), ("1F1B, ours", &ours)];
    let with = |(name, checked)| (name, Pipeline { layers: &layers, cut: &cut, checked });
    compare("ch06_1f1b", &costs, &lists.map(with))?;
    let [yours, theirs] = [&found, &ours].map(|it| in_a_row(it.kept()).replace(' ', " and "));
    Ok(paragraph(format_args!(
        "Your stages keep {yours} micro-batches at a time. 1F1B keeps {theirs}."
    ))?)
}

/// Shows the lists in PyTorch's format, and executes them in its runtime. Fails when there is no PyTorch.
fn execute_in_pytorch(lists: &[Checked]) -> Run {
    fs::create_dir_all("target/runs")?;
    let mut files = Vec::new();
    for ((stages, micro_batches), lists) in SHAPES.into_iter().zip(lists) {
        let path = PathBuf::from(format!("target/runs/ch06_1f1b-{stages}x{micro_batches}.csv"));
        let list = lists.schedule().to_pytorch();
        line(format_args!("{stages} stages, {micro_batches} micro-batches, for PyTorch:\n{list}"))?;
        file::write(&path, |file| file.write_all(list.as_bytes()))?;
        runtime::write_step(&path)?;
        files.push(path);
    }
    runtime::execute(&files)?;
    Ok(paragraph(
        "PyTorch's pipelining runtime, with a process for each stage, gets the gradients and the updated weights of one device here. The differences are rounding in f64.",
    )?)
}
