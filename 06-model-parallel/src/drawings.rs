//! `--draw`: schedules as they would be, without training anything.

use model_parallel::pipeline::channel::UNBOUNDED;
use model_parallel::pipeline::predict::{Costs, StageCost};
use model_parallel::pipeline::schedule::Refused;
use model_parallel::pipeline::{Kind, check, predict};
use single_gpu::cli::UsageError;
use single_gpu::report::{counted, line};

/// What is to be drawn.
pub(crate) struct Drawings {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) stages: usize,
    pub(crate) micro_batches: usize,
}

impl Drawings {
    /// Refuses what cannot be had, before anything is drawn.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let refused = |error: Refused| UsageError::new(format_args!("--schedule: {error}"));
        let schedule = |kind: &Kind| kind.schedule(self.stages, self.micro_batches).map(drop);
        self.kinds.iter().try_for_each(schedule).map_err(refused)
    }

    /// Each schedule as text, with what it is judged by.
    pub(crate) fn tell(&self) -> anyhow::Result<()> {
        let Self { stages, micro_batches, .. } = *self;
        let mut first = true;
        for kind in &self.kinds {
            let checked = check(kind.schedule(stages, micro_batches)?, UNBOUNDED)?;
            let timeline = predict(&checked, &Costs::equal(stages, StageCost::UNITS))?;
            // Chunks are parts of a stage: their passes are as much shorter.
            let unit = 1.0 / checked.schedule().chunks as f64;
            if !first {
                line("")?;
            }
            first = false;
            line(format_args!(
                "{kind}: {}, {}",
                counted(stages, "stage"),
                counted(micro_batches, "micro-batch"),
            ))?;
            line(timeline.drawing(unit).trim_end())?;
            line(format_args!(
                "bubble {:.1} %, {} units of time; channels have to hold {} at least",
                timeline.bubble() * 100.0,
                (timeline.makespan() * 100.0).round() / 100.0,
                match checked.smallest_capacity() {
                    0 => "nothing".to_owned(),
                    capacity => counted(capacity, "message"),
                },
            ))?;
            let alive: Vec<String> =
                checked.peaks().iter().map(|peak| peak.both.to_string()).collect();
            let of = if checked.schedule().chunks > 1 { " of a chunk" } else { "" };
            line(format_args!("micro-batches{of} kept by each stage: {}", alive.join(", ")))?;
        }
        Ok(())
    }
}
