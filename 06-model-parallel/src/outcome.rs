//! What a run came to.

use std::path::Path;

use concise_wrapper::weights::Snapshot;
use devices::DevicePlan;
use harness::records::EpochRecord;
use harness::report::file;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use model_parallel::held::Held;
use model_parallel::pipeline::Timeline;
use model_parallel::pipeline::timeline::gantt::{Beside, chart};
use ops::weights_hash::WeightsHash;
use serde::Serialize;

use crate::arguments::Prepared;
use crate::way::{Planned, Way};

/// What a run has shown on rank 0.
pub(crate) struct Shown {
    pub(crate) records: Vec<EpochRecord>,
    pub(crate) after_first_step: Snapshot,
    pub(crate) weights: Snapshot,
    /// Of each replica's whole weights, as hashes.
    pub(crate) replicas: Vec<String>,
    /// By each device.
    pub(crate) held: Vec<Held>,
    /// Of the first steps, where there are stages.
    pub(crate) steps: Vec<Timeline>,
}

/// A run that has ended.
pub(crate) struct Outcome<'a> {
    pub(crate) way: &'a Way,
    pub(crate) summary: Summary,
    pub(crate) seconds_per_step: f64,
    pub(crate) after_first_step: Snapshot,
    pub(crate) weights: Snapshot,
    pub(crate) replicas: Vec<String>,
    pub(crate) held: Vec<Held>,
    pub(crate) stages: Option<Stages>,
}

/// What was predicted of a pipeline, and what was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stages {
    /// A step, from what layers cost.
    pub(crate) predicted: Timeline,
    /// The step whose bubble is the median of all steps'.
    pub(crate) measured: Timeline,
    /// The part of all devices' time in which they were to wait.
    pub(crate) predicted_bubble: f64,
    /// That in which they did, in the measured step.
    pub(crate) measured_bubble: f64,
    /// The most micro-batches whose activations each stage is to keep at one time.
    pub(crate) alive: Vec<usize>,
    /// Of so many.
    pub(crate) micro_batches: usize,
}

/// A line of the metrics file.
#[derive(Serialize)]
struct SplitLine<'a> {
    run: &'a str,
    /// The layers of each stage.
    cut: &'a [std::ops::Range<usize>],
    seconds_per_step: f64,
    /// By each device.
    held: &'a [Held],
    #[serde(flatten)]
    stages: Option<&'a Stages>,
}

impl<'a> Outcome<'a> {
    /// Puts together what a run was with what it has shown, and tells the files.
    pub(crate) fn new(
        way: &'a Way,
        planned: &Planned,
        prepared: &Prepared,
        plan: &DevicePlan,
        shown: Shown,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Self> {
        let Shown { records, mut after_first_step, mut weights, replicas, held, steps } = shown;
        // Stages come one after the other, and on one device parameters before buffers.
        for named in [&mut after_first_step, &mut weights] {
            named.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        let name = way.name();
        let hash = WeightsHash::new(&weights)?;
        let mut summary = prepared.setup.summary(&name, plan, &records, hash);
        if !way.is_alone() {
            summary.devices.clone_from(&prepared.devices);
        }
        summary.method = Some(way.to_string());
        outputs.run_ended(&summary, &records)?;
        let options = &prepared.setup.options;
        let batches = prepared.setup.data.train.len().div_ceil(options.batch_size);
        let seconds_per_step = summary.seconds_per_epoch / batches as f64;
        let stages = way.predicted().and_then(|predicted| Stages::new(way, predicted, steps));
        if let Some(metrics) = outputs.metrics() {
            let cut = if stages.is_some() { planned.cut.as_slice() } else { &[] };
            let (stages, held) = (stages.as_ref(), held.as_slice());
            let split = SplitLine { run: &name, cut, seconds_per_step, held, stages };
            metrics.write("split", &split)?;
        }
        Ok(Self {
            way,
            summary,
            seconds_per_step,
            after_first_step,
            weights,
            replicas,
            held,
            stages,
        })
    }
}

impl Stages {
    /// `None` where there was no step.
    fn new(way: &Way, predicted: &Timeline, steps: Vec<Timeline>) -> Option<Self> {
        let measured = middle(steps)?;
        Some(Self {
            predicted: predicted.clone(),
            predicted_bubble: predicted.bubble(),
            measured_bubble: measured.bubble(),
            measured,
            alive: way.alive(),
            micro_batches: way.micro_batches(),
        })
    }
}

/// The step whose bubble is the median of all, without the first if there are others.
fn middle(mut steps: Vec<Timeline>) -> Option<Timeline> {
    // The first step meets memory that nobody has touched before.
    if steps.len() > 1 {
        steps.remove(0);
    }
    steps.sort_by(|a, b| a.bubble().total_cmp(&b.bubble()));
    let middle = steps.len() / 2;
    steps.into_iter().nth(middle)
}

/// Draws each pipeline's step, measured below predicted.
pub(crate) fn write_gantt(
    path: &Path,
    title: &str,
    outcomes: &[Outcome<'_>],
) -> anyhow::Result<()> {
    let of_pipelines = outcomes.iter().filter_map(|outcome| {
        let Stages { predicted, measured, .. } = outcome.stages.as_ref()?;
        Some(Beside { name: &outcome.summary.run, predicted, measured })
    });
    let beside: Vec<Beside<'_>> = of_pipelines.collect();
    if beside.is_empty() {
        return Ok(());
    }
    let svg = chart(title, &beside).svg().map_err(anyhow::Error::from_boxed)?;
    Ok(file::write_flag("--gantt", path, |file| file.write_all(svg.as_bytes()))?)
}

#[cfg(test)]
mod tests {
    use model_parallel::pipeline::schedule::{Action, Instruction};
    use model_parallel::pipeline::timeline::Span;

    use super::*;

    /// One stage that is busy for a second, and done after so many.
    fn step(makespan: f64) -> Timeline {
        let span = |action, start, end| Span {
            stage: 0,
            instruction: Instruction::from(action),
            start,
            end,
        };
        let spans = vec![
            span(Action::Forward(0), 0.0, 1.0),
            span(Action::SendActivation(0), 1.0, makespan),
        ];
        Timeline { stages: 1, spans }
    }

    #[test]
    fn the_middle_step_is_shown_and_the_first_does_not_count() {
        let of = |makespans: &[f64]| middle(makespans.iter().map(|&end| step(end)).collect());
        assert_eq!(of(&[100.0, 4.0, 2.0, 50.0]), Some(step(4.0)));
        assert_eq!(step(4.0).bubble(), 0.75);
        // One step is better than none.
        assert_eq!(of(&[10.0]), Some(step(10.0)));
        assert_eq!(of(&[]), None);
    }
}
