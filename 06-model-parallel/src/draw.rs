//! `--draw`: schedules as text, without training.

use devices::SeveralDevices;
use harness::cli::UsageError;
use harness::report::{counted, thousands};
use itertools::Itertools as _;
use model_parallel::partition::Cost;
use model_parallel::pipeline::{Kind, UNBOUNDED, check, predict};

use crate::arguments::Arguments;

/// The largest number of columns of a drawing. A file may have more than a terminal shows.
const MOST_COLUMNS: usize = 1000;

/// Draws the schedules, each with its bubble, its channels, and the micro-batches that stages keep. Fails with a
/// [`UsageError`] when there is no such schedule, or the drawing is too wide.
pub(crate) fn drawings(flags: &Arguments) -> anyhow::Result<String> {
    let stages = flags.launch.devices.unwrap_or(SeveralDevices::DEFAULT);
    let mut drawings = Vec::new();
    for (kind, micro_batches) in flags.schedules(stages) {
        kind.check(stages, micro_batches).map_err(UsageError::new)?;
        let size = [counted(stages, "stage"), counted(micro_batches, "micro-batch")];
        let columns = columns(kind, stages, micro_batches);
        if columns > MOST_COLUMNS {
            return Err(UsageError::new(format_args!(
                "--draw: {kind} of {} is up to {} columns wide, and a drawing has at most {}: take fewer --devices or \
                 --micro-batches",
                size.join(" and "),
                thousands(columns),
                thousands(MOST_COLUMNS),
            ))
            .into());
        }
        let checked = check(kind.schedule(stages, micro_batches)?, UNBOUNDED)?;
        let timeline = predict(&checked, &vec![Cost::UNITS; stages], 0.0)?;
        let channels = match checked.smallest_capacity() {
            0 => "no message has to wait in a channel".to_owned(),
            capacity => format!("channels have to hold {} at least", counted(capacity, "message")),
        };
        let kept = checked.peaks().iter().map(|peak| peak.both).join(", ");
        drawings.push(format!(
            "{kind}: {}\n{}\nbubble {:.1} %, {} units of time; {channels}\nmicro-batches{} kept by each stage: {kept}",
            size.join(", "),
            // The passes of a chunk are as much shorter as the chunk is.
            timeline.drawing(1.0 / kind.chunks() as f64).trim_end(),
            timeline.bubble() * 100.0,
            (timeline.makespan() * 100.0).round() / 100.0,
            if kind.chunks() > 1 { " of a chunk" } else { "" },
        ));
    }
    Ok(drawings.join("\n\n"))
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
    fn drawings_are_as_wide_as_was_said_before_they_were_made() {
        let chunks = |chunks| Kind::Interleaved { chunks };
        for kind in [Kind::Naive, Kind::GPipe, Kind::OneFOneB, chunks(2), chunks(3), Kind::ZbH1] {
            for (stages, micro_batches) in [(1, 1), (1, 4), (2, 2), (3, 6), (4, 12), (5, 3)] {
                let Ok(schedule) = kind.schedule(stages, micro_batches) else { continue };
                let unit = 1.0 / schedule.chunks as f64;
                let checked = check(schedule, UNBOUNDED).expect("a schedule");
                let costs = vec![Cost::UNITS; stages];
                let timeline = predict(&checked, &costs, 0.0).expect("a prediction");
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
