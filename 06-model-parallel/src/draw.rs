//! `--draw`: schedules as text, without training.

use std::path::Path;

use devices::SeveralDevices;
use drawing::Place;
use harness::cli::UsageError;
use harness::report::{self, counted, file, line, number, paragraph, thousands};
use itertools::Itertools as _;
use model_parallel::gantt::chart;
use model_parallel::mesh::Mesh;
use model_parallel::{Checked, Cost, Kind, Schedule, UNBOUNDED, check};

use crate::arguments::Arguments;
use crate::conclusions::of_drawings;

/// The largest number of columns of a drawing: its parts fill some screens.
const MOST_COLUMNS: usize = 1000;

/// Prints drawings of the schedules, each with its idle time, its channels, and the micro-batches that stages keep. With
/// `--gantt` draws a picture, too, and with `--export` writes the list. A process that does not speak only checks the flags. Fails with a [`UsageError`] when there
/// is no such schedule, or a drawing is too wide.
pub(crate) fn draw(mut flags: Arguments, speaks: bool) -> anyhow::Result<()> {
    let stages = flags.launch.devices.unwrap_or(SeveralDevices::DEFAULT);
    let schedules = flags.schedules(Mesh::pipeline(stages));
    for &(kind, micro_batches) in &schedules {
        kind.check(stages, micro_batches).map_err(UsageError::new)?;
        let columns = columns(kind, stages, micro_batches);
        if columns > MOST_COLUMNS {
            return Err(UsageError::new(format_args!(
                "--draw: {kind} of {} and {} has up to {} columns, and a drawing has at most {}: take fewer \
                 --devices or --micro-batches",
                counted(stages, "stage"),
                counted(micro_batches, "micro-batch"),
                thousands(columns),
                thousands(MOST_COLUMNS),
            ))
            .into());
        }
    }
    flags.check_files(speaks, Mesh::pipeline(stages))?;
    let exported = flags.export.as_deref().zip(schedules.first().copied());
    if speaks {
        paragraph(legend(&schedules))?;
        line("")?;
    }
    let mut all = Vec::new();
    for (kind, micro_batches) in schedules.into_iter().filter(|_| speaks) {
        let checked = check(kind.schedule(stages, micro_batches)?, UNBOUNDED)?;
        let predicted = checked.simulate(&units(&checked, kind), 0.0)?;
        let channels = match checked.smallest_capacity() {
            0 => "no message has to wait in a channel".to_owned(),
            capacity => format!("each channel needs room for {}", counted(capacity, "message")),
        };
        let kept = (0..stages).map(|stage| predicted.peak(stage).activations);
        let (name, chunks) = (kind.to_string(), kind.chunks());
        let size = [counted(stages, "stage"), counted(micro_batches, "micro-batch")].join(", ");
        paragraph(format_args!("{name}: {size}"))?;
        // The passes of a chunk are as much shorter as the chunk is.
        line(predicted.drawing(1.0 / chunks as f64, report::columns()).trim_end())?;
        paragraph(format_args!(
            "{} units of time{}, idle (bubble) {:.1} %; {channels}\nmicro-batches{} kept by each stage: {}",
            number((predicted.makespan() * 100.0).round() / 100.0),
            if chunks > 1 { format!(" (a column is 1/{chunks})") } else { String::new() },
            predicted.bubble() * 100.0,
            if chunks > 1 { " of a chunk" } else { "" },
            kept.into_iter().join(", "),
        ))?;
        line("")?;
        let name = match kind {
            Kind::Interleaved { chunks } => format!("interleaved 1F1B ({chunks} chunks)"),
            _ => name,
        };
        all.push(((name, predicted.bubble()), predicted));
    }
    let (drawn, predicted): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    if speaks {
        paragraph(of_drawings(&drawn))?;
    }
    let exported = exported.map_or(Ok(()), |(path, (kind, micro_batches))| {
        write_list(path, &kind.schedule(stages, micro_batches)?)
    });
    let Some(path) = flags.gantt.as_deref() else { return exported };
    let title = "Predicted steps: a forward pass takes one unit of time, a backward pass two, a message nothing";
    let named = drawn.iter().zip(&predicted).map(|((name, _), step)| (&**name, [step]));
    let svg = chart(title, None, &named.collect_vec()).svg(Place::File);
    file::write_flag("--gantt", path, |file| file.write_all(svg.as_bytes()))?;
    exported
}

/// Writes the file of `--export`.
pub(crate) fn write_list(path: &Path, schedule: &Schedule) -> anyhow::Result<()> {
    let list = schedule.to_pytorch();
    Ok(file::write_flag("--export", path, |file| file.write_all(list.as_bytes()))?)
}

/// The costs of all units. The passes of a chunk are as much shorter as the chunk is.
fn units(checked: &Checked, kind: Kind) -> Vec<Cost> {
    vec![Cost::UNITS.faster(kind.chunks() as f64); checked.schedule().units()]
}

/// Explains the cells of drawings.
fn legend(schedules: &[(Kind, usize)]) -> String {
    let chunk = match schedules.iter().any(|(kind, _)| kind.chunks() > 1) {
        true => " and the letter of its chunk",
        false => "",
    };
    let weights = match schedules.iter().any(|(kind, _)| *kind == Kind::ZbH1) {
        true => {
            "; ZB-H1 cuts the backward pass: B for the gradients of inputs, W for those of weights"
        }
        false => "",
    };
    format!(
        "F: forward pass, B: backward pass, with the number of the micro-batch{chunk}; ··: idle. A forward pass of a stage \
         takes a unit of time, and its backward pass takes two{weights}."
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
                let Ok(schedule) = kind.schedule(stages, micro_batches) else { continue };
                let unit = 1.0 / kind.chunks() as f64;
                let checked = check(schedule, UNBOUNDED).expect("a schedule");
                let costs = units(&checked, kind);
                let timeline = checked.simulate(&costs, 0.0).expect("a prediction");
                let drawn = (timeline.makespan() / unit).round() as usize;
                let said = columns(kind, stages, micro_batches);
                assert!(drawn <= said, "{kind} {stages} × {micro_batches}: {drawn}, not {said}");
                if kind != Kind::ZbH1 {
                    assert_eq!(drawn, said, "{kind} {stages} × {micro_batches}");
                }
            }
        }
    }
}
