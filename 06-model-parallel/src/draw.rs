//! `--draw`: schedules as text, without training.

use harness::cli::UsageError;
use harness::report::{counted, line, thousands};
use model_parallel::Refused;
use model_parallel::pipeline::predict::{Costs, StageCost};
use model_parallel::pipeline::{Kind, UNBOUNDED, check, predict};

/// The largest number of columns of a drawing. A file may have more than a terminal shows.
const MOST_COLUMNS: usize = 1000;

/// The schedules to draw.
pub(crate) struct Drawings {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) stages: usize,
    pub(crate) micro_batches: usize,
}

impl Drawings {
    /// Refuses schedules that do not exist, and drawings that are too wide.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let Self { kinds, stages, micro_batches } = self;
        let refused = |error: Refused| UsageError::new(format_args!("--schedule: {error}"));
        for kind in kinds {
            kind.check(*stages, *micro_batches).map_err(refused)?;
            let columns = self.columns(*kind);
            if columns > MOST_COLUMNS {
                return Err(UsageError::new(format_args!(
                    "--draw: {kind} of {} and {} is up to {} columns wide, and a drawing has at most {}: take fewer \
                     --devices or --micro-batches",
                    counted(*stages, "stage"),
                    counted(*micro_batches, "micro-batch"),
                    thousands(columns),
                    thousands(MOST_COLUMNS),
                )));
            }
        }
        Ok(())
    }

    /// The largest number of columns of a schedule, by [`StageCost::UNITS`] and the bubbles of the literature. A drawing
    /// of ZB-H1 has fewer when there are enough micro-batches.
    fn columns(&self, kind: Kind) -> usize {
        let Self { stages, micro_batches, .. } = *self;
        // One column forward, two backward.
        3 * match kind {
            Kind::Naive => stages * micro_batches,
            _ => kind.chunks() * micro_batches + stages - 1,
        }
    }

    /// Prints each schedule with its bubble, its channels, and the micro-batches that stages keep.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let Self { kinds, stages, micro_batches } = self;
        for (number, kind) in kinds.iter().enumerate() {
            let checked = check(kind.schedule(*stages, *micro_batches)?, UNBOUNDED)?;
            let timeline = predict(&checked, &Costs::equal(*stages, StageCost::UNITS))?;
            if number > 0 {
                line("")?;
            }
            line(format_args!(
                "{kind}: {}, {}",
                counted(*stages, "stage"),
                counted(*micro_batches, "micro-batch"),
            ))?;
            // The passes of a chunk are as much shorter as the chunk is.
            line(timeline.drawing(1.0 / kind.chunks() as f64).trim_end())?;
            line(format_args!(
                "bubble {:.1} %, {} units of time; {}",
                timeline.bubble() * 100.0,
                (timeline.makespan() * 100.0).round() / 100.0,
                match checked.smallest_capacity() {
                    0 => "no message has to wait in a channel".to_owned(),
                    capacity =>
                        format!("channels have to hold {} at least", counted(capacity, "message")),
                },
            ))?;
            let kept: Vec<String> =
                checked.peaks().iter().map(|peak| peak.both.to_string()).collect();
            let of = if kind.chunks() > 1 { " of a chunk" } else { "" };
            line(format_args!("micro-batches{of} kept by each stage: {}", kept.join(", ")))?;
        }
        Ok(())
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
                let costs = Costs::equal(stages, StageCost::UNITS);
                let timeline = predict(&checked, &costs).expect("a prediction");
                let drawn = (timeline.makespan() / unit).round() as usize;
                let said = Drawings { kinds: vec![], stages, micro_batches }.columns(kind);
                assert!(drawn <= said, "{kind} {stages} × {micro_batches}: {drawn}, not {said}");
                if kind != Kind::ZbH1 {
                    assert_eq!(drawn, said, "{kind} {stages} × {micro_batches}");
                }
            }
        }
    }
}
