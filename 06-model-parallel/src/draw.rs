//! `--draw`: schedules as text, without training.

use anyhow::bail;
use concise_wrapper::launch::Launch;
use devices::SeveralDevices;
use harness::cli::UsageError;
use harness::report::{self, counted, joined, line, number, paragraph, thousands};
use itertools::Itertools as _;
use model_parallel::mesh::Mesh;
use model_parallel::runs::{draw_steps, write};
use model_parallel::{Checked, Cost, Kind, Timeline, UNBOUNDED, check};

use crate::arguments::Arguments;

/// The largest number of columns of a drawing: its parts fill some screens.
const MOST_COLUMNS: usize = 1000;

/// Prints drawings of the schedules, each with its idle time, its channels, and the micro-batches that stages keep. With
/// `--gantt` draws a picture, too, and with `--export` writes the list. A process that does not speak only checks the flags.
/// Fails with a [`UsageError`] when there is no such schedule, or a drawing is too wide.
pub(crate) fn draw(mut flags: Arguments, launch: &Launch) -> anyhow::Result<()> {
    let stages = flags.common.launch.devices.unwrap_or(SeveralDevices::DEFAULT);
    let schedules = flags.schedules(Mesh::pipeline(stages));
    for &(kind, micro_batches) in &schedules {
        kind.check(stages, micro_batches).map_err(UsageError::new)?;
        let columns = columns(kind, stages, micro_batches);
        if columns > MOST_COLUMNS {
            bail!(UsageError::new(format_args!(
                "--draw: {kind} of {} and {} has up to {} columns, and a drawing has at most {}: take fewer \
                 --devices or --micro-batches",
                counted(stages, "stage"),
                counted(micro_batches, "micro-batch"),
                thousands(columns),
                thousands(MOST_COLUMNS),
            )));
        }
    }
    flags.check(launch, Mesh::pipeline(stages))?;
    if !launch.speaks() {
        return Ok(());
    }
    paragraph(legend(&schedules))?;
    line("")?;
    let mut drawn = Vec::new();
    for (kind, micro_batches) in schedules {
        let (checked, step) = predict(kind, stages, micro_batches)?;
        let channels = match checked.smallest_capacity() {
            0 => "no message has to wait in a channel".to_owned(),
            capacity => format!("each channel needs room for {}", counted(capacity, "message")),
        };
        let size = [counted(stages, "stage"), counted(micro_batches, "micro-batch")].join(", ");
        paragraph(format_args!("{kind}: {size}"))?;
        let (mut name, mut column, mut part) = (kind.to_string(), String::new(), "");
        if let Kind::Interleaved { chunks } = kind {
            name = format!("interleaved 1F1B ({chunks} chunks)");
            (column, part) = (format!(" (a column is 1/{chunks})"), " of a chunk");
        }
        line(step.drawing(1.0 / kind.chunks() as f64, report::columns()).trim_end())?;
        paragraph(format_args!(
            "{} units of time{column}, idle (bubble) {:.1} %; {channels}\nmicro-batches{part} kept by each stage: {}",
            number((step.makespan() * 100.0).round() / 100.0),
            step.bubble() * 100.0,
            (0..stages).map(|stage| step.held(stage).peak.activations).join(", "),
        ))?;
        line("")?;
        drawn.push((name, checked, step));
    }
    paragraph(least_idle(&drawn))?;
    let list = || drawn.iter().map(|(_, checked, _)| checked.schedule().to_pytorch()).collect();
    let exported = write("--export", flags.export.as_deref(), list);
    let title = "Predicted steps: a forward pass takes one unit of time, a backward pass two, a message nothing";
    let steps = drawn.iter().map(|(name, _, step)| (&**name, [step])).collect_vec();
    Ok(draw_steps(flags.common.gantt.as_deref(), title, &[], &steps).and(exported)?)
}

/// Checks a schedule, and predicts its step in units of time.
fn predict(kind: Kind, stages: usize, micro_batches: usize) -> anyhow::Result<(Checked, Timeline)> {
    let checked = check(kind.schedule(stages, micro_batches)?, UNBOUNDED)?;
    // The passes of a chunk are as much shorter as the chunk is.
    let cost = Cost::UNITS.faster(kind.chunks() as f64);
    let step = checked.simulate(&vec![cost; checked.schedule().units()], 0.0)?;
    Ok((checked, step))
}

/// Explains the cells of drawings.
fn legend(schedules: &[(Kind, usize)]) -> String {
    let has = |which: fn(&Kind) -> bool| schedules.iter().any(|(kind, _)| which(kind));
    let chunk = if has(|kind| kind.chunks() > 1) { " and the letter of its chunk" } else { "" };
    let halves =
        "; ZB-H1 cuts the backward pass: B for the gradients of inputs, W for those of weights";
    let halves = if has(|kind| *kind == Kind::ZbH1) { halves } else { "" };
    format!(
        "F: forward pass, B: backward pass, with the number of the micro-batch{chunk}; ··: idle. A forward pass of a stage \
         takes a unit of time, and its backward pass takes two{halves}."
    )
}

/// The largest number of columns of a schedule, by [`Cost::UNITS`] and the bubbles of the literature. A drawing of ZB-H1
/// has fewer when there are enough micro-batches.
fn columns(kind: Kind, stages: usize, micro_batches: usize) -> usize {
    // One column forward, two backward.
    3 * match kind {
        Kind::Naive => stages * micro_batches,
        _ => kind.chunks() * micro_batches + stages - 1,
    }
}

/// Names the schedules with the least idle time.
fn least_idle(drawn: &[(String, Checked, Timeline)]) -> String {
    let idle = drawn.iter().map(|(.., step)| step.bubble());
    let least = idle.clone().fold(f64::INFINITY, f64::min);
    let best = drawn.iter().zip(idle).filter(|(_, idle)| *idle <= least + 1e-9);
    let names = joined(best.map(|((name, ..), _)| name.clone()));
    format!("Least idle time: {names}, {:.1} %.", 100.0 * least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legend_explains_the_cells_that_are_drawn() {
        let plain = legend(&[(Kind::GPipe, 4), (Kind::OneFOneB, 4)]);
        assert!(!plain.contains("chunk") && !plain.contains("ZB-H1"), "{plain}");
        let all = legend(&[(Kind::Interleaved { chunks: 2 }, 4), (Kind::ZbH1, 4)]);
        assert!(all.contains("the letter of its chunk") && all.contains("W for those"), "{all}");
    }

    #[test]
    fn drawings_are_as_wide_as_was_said_before_they_were_made() {
        let chunks = |chunks| Kind::Interleaved { chunks };
        for kind in [Kind::Naive, Kind::GPipe, Kind::OneFOneB, chunks(2), chunks(3), Kind::ZbH1] {
            for (stages, micro_batches) in [(1, 1), (1, 4), (2, 2), (3, 6), (4, 12), (5, 3)] {
                let Ok((_, step)) = predict(kind, stages, micro_batches) else { continue };
                let drawn = (step.makespan() * kind.chunks() as f64).round() as usize;
                let said = columns(kind, stages, micro_batches);
                assert!(drawn <= said, "{kind} {stages} × {micro_batches}: {drawn}, not {said}");
                if kind != Kind::ZbH1 {
                    assert_eq!(drawn, said, "{kind} {stages} × {micro_batches}");
                }
            }
        }
    }

    #[test]
    fn schedules_are_compared_without_training() {
        let two = |kind: Kind| {
            let (checked, step) = predict(kind, 2, 2).expect("a prediction");
            (kind.to_string(), checked, step)
        };
        let drawn = [Kind::GPipe, Kind::OneFOneB, Kind::Interleaved { chunks: 2 }].map(two);
        assert_eq!(least_idle(&drawn), "Least idle time: interleaved 1F1B, 2 chunks, 20.0 %.");
        assert_eq!(least_idle(&drawn[..2]), "Least idle time: GPipe and 1F1B, 33.3 %.");
    }
}
