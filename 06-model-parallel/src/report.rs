//! The results of all ways: tables, sentences, and files.

use std::ops::Range;
use std::path::Path;

use concise_wrapper::replicas::verdict;
use concise_wrapper::weights::Snapshot;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::{file, line, seconds};
use model_parallel::held::Held;
use model_parallel::pipeline::Timeline;
use model_parallel::pipeline::drawing::{Beside, chart};
use ops::difference::largest_difference;
use ops::weights_hash::WeightsHash;
use serde::Serialize;

use crate::arguments::Prepared;
use crate::plan::{Pipeline, Way};
use crate::train::Trained;

/// The title of the table of memory.
const HELD: &str = "MB held by a device";

/// The results of a way.
pub(crate) struct Outcome<'a> {
    way: &'a Way,
    trained: Trained,
    summary: Summary,
    seconds_per_step: f64,
    stages: Option<Stages>,
}

/// The prediction and the measurement of a pipeline.
#[derive(Clone, Debug, Serialize)]
struct Stages {
    predicted: Timeline,
    /// The step with the median bubble.
    measured: Timeline,
    predicted_bubble: f64,
    measured_bubble: f64,
    /// The largest number of micro-batches that each stage keeps something of; with chunks, of each chunk.
    alive: Vec<usize>,
    /// The number of micro-batches; with chunks, of all chunks.
    micro_batches: usize,
}

/// A line of the metrics file.
#[derive(Serialize)]
struct SplitLine<'a> {
    run: &'a str,
    /// The layers of each part.
    cut: &'a [Range<usize>],
    seconds_per_step: f64,
    /// The bytes of each device.
    held: &'a [Held],
    #[serde(flatten)]
    stages: Option<&'a Stages>,
}

impl<'a> Outcome<'a> {
    /// Summarises the results of a way, and writes them to the files of the run.
    pub(crate) fn new(
        way: &'a Way,
        prepared: &Prepared,
        mut trained: Trained,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Self> {
        // Stages come one after the other, and on one device parameters come before buffers.
        for named in [&mut trained.after_first_step, &mut trained.weights] {
            named.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        let hash = WeightsHash::new(&trained.weights)?;
        let devices = prepared.devices_of(way);
        let mut summary = prepared.setup.summary(&way.name, devices, &trained.records, hash);
        if !way.is_alone() {
            summary.devices.clone_from(&prepared.devices);
        }
        summary.method = Some(way.title());
        outputs.run_ended(&summary, &trained.records)?;
        let options = &prepared.setup.options;
        let batches = prepared.setup.data.train.len().div_ceil(options.batch_size);
        let seconds_per_step = summary.seconds_per_epoch / batches as f64;
        let steps = std::mem::take(&mut trained.steps);
        let stages = way.stages().and_then(|pipeline| Stages::new(pipeline, steps));
        if let Some(metrics) = outputs.metrics() {
            let cut = way.stages().map_or(&[][..], |pipeline| &pipeline.cut);
            let (run, held, stages) = (way.name.as_str(), trained.held.as_slice(), stages.as_ref());
            metrics.write("split", &SplitLine { run, cut, seconds_per_step, held, stages })?;
        }
        Ok(Self { way, trained, summary, seconds_per_step, stages })
    }

    /// The largest number of bytes of activations on a device.
    fn activations(&self) -> usize {
        self.trained.held.iter().map(|held| held.activations).max().unwrap_or(0)
    }

    fn hash(&self) -> &str {
        &self.summary.weights_hash[..8]
    }
}

impl Stages {
    /// Returns `None` without a step.
    fn new(Pipeline { checked, predicted, .. }: &Pipeline, steps: Vec<Timeline>) -> Option<Self> {
        let measured = median_step(steps)?;
        let schedule = checked.schedule();
        Some(Self {
            predicted: predicted.clone(),
            predicted_bubble: predicted.bubble(),
            measured_bubble: measured.bubble(),
            measured,
            alive: checked.peaks().iter().map(|peak| peak.both).collect(),
            micro_batches: schedule.micro_batches * schedule.chunks,
        })
    }
}

/// The step with the median bubble, without the first step if there are more. The first step uses memory that the
/// system has not provided yet.
fn median_step(mut steps: Vec<Timeline>) -> Option<Timeline> {
    if steps.len() > 1 {
        steps.remove(0);
    }
    steps.sort_by(|a, b| a.bubble().total_cmp(&b.bubble()));
    let middle = steps.len() / 2;
    steps.into_iter().nth(middle)
}

/// Prints the tables and their conclusions, then writes the files of the run.
pub(crate) fn report(
    outcomes: &[Outcome<'_>],
    prepared: &Prepared,
    headline: &str,
    outputs: Outputs,
) -> anyhow::Result<()> {
    let width = outcomes.iter().map(|outcome| outcome.way.name.chars().count()).max().unwrap_or(0);
    let width = width.max(HELD.len());
    print_times(outcomes, width, prepared)?;
    print_memory(outcomes, width)?;
    line("")?;
    for sentence in conclusions(outcomes) {
        line(sentence)?;
    }
    for outcome in outcomes {
        line(&outcome.summary)?;
    }
    for Outcome { way, trained, .. } in outcomes {
        if trained.replicas.len() > 1 {
            line(format_args!("{}: {}", way.name, verdict(&trained.replicas)))?;
        }
    }
    // An error of the first file does not prevent the second file.
    let written = outputs.write(headline);
    let gantt = prepared.gantt.as_deref();
    let drawn = gantt.map_or(Ok(()), |path| write_gantt(path, headline, outcomes));
    written?;
    drawn
}

const TIMES: &str = "    s/step  speed-up  predicted  measured  after 1 step  at the end  weights";
const MEMORY: &str =
    "  device  parameters  gradients  optimiser  activations  in all  sent/step    alive";

/// Prints a row of a table: a name, and cells of these widths.
fn row<const N: usize>(
    name: &str,
    width: usize,
    widths: [usize; N],
    cells: [String; N],
) -> anyhow::Result<()> {
    let cells = cells.into_iter().zip(widths).map(|(cell, width)| format!("  {cell:>width$}"));
    Ok(line(format_args!("{name:width$}{}", cells.collect::<String>()))?)
}

/// Prints times, bubbles, and differences from the weights of one device.
fn print_times(outcomes: &[Outcome<'_>], width: usize, prepared: &Prepared) -> anyhow::Result<()> {
    line(format_args!("\n{:width$}  {:>39}  {:>24}", "", "bubble", "largest difference"))?;
    line(format_args!("{:width$}{TIMES}", ""))?;
    let has_norms = prepared.model.has_norms();
    let one = outcomes.iter().find(|outcome| outcome.way.is_alone());
    for outcome in outcomes {
        let Outcome { way, summary, seconds_per_step, stages, .. } = outcome;
        let speed_up = one.map(|one| format!("{:.2}×", one.seconds_per_step / seconds_per_step));
        let percent = |bubble: f64| format!("{:.0} %", bubble * 100.0);
        // With batch norms, other shards are another function.
        let reference = outcomes
            .iter()
            .find(|it| it.way.is_alone() && (it.way.shards == way.shards || !has_norms))
            .filter(|reference| !std::ptr::eq(*reference, outcome));
        // An interrupt may have ended one way before the other.
        let complete = reference.filter(|it| it.summary.epochs_trained == summary.epochs_trained);
        let apart = |weights: fn(&Trained) -> &Snapshot, other: Option<&Outcome<'_>>| {
            let other = other.map(|other| weights(&other.trained));
            let apart = other.map(|other| largest_difference(weights(&outcome.trained), other));
            anyhow::Ok(apart.transpose()?.map(|apart| format!("{apart:.1e}")))
        };
        let cells = [
            Some(seconds(*seconds_per_step)),
            speed_up,
            stages.as_ref().map(|stages| percent(stages.predicted_bubble)),
            stages.as_ref().map(|stages| percent(stages.measured_bubble)),
            apart(|trained| &trained.after_first_step, reference)?,
            apart(|trained| &trained.weights, complete)?,
            Some(outcome.hash().to_owned()),
        ];
        row(&way.name, width, [8, 8, 9, 8, 12, 10, 0], cells.map(or_nothing))?;
    }
    Ok(())
}

/// Prints the bytes that each device holds and sends.
fn print_memory(outcomes: &[Outcome<'_>], width: usize) -> anyhow::Result<()> {
    line(format_args!("\n{HELD:width$}{MEMORY}"))?;
    for Outcome { way, trained, stages, .. } in outcomes {
        for (device, held) in trained.held.iter().enumerate() {
            let stage = way.mesh.coordinates(device).pipeline;
            let alive =
                |stages: &Stages| format!("{} of {}", stages.alive[stage], stages.micro_batches);
            let name = if device == 0 { way.name.as_str() } else { "" };
            let cells = [
                device.to_string(),
                megabytes(held.parameters),
                megabytes(held.gradients),
                megabytes(held.optimiser),
                megabytes(held.activations),
                megabytes(held.total()),
                or_nothing((held.sent > 0).then(|| megabytes(held.sent))),
                or_nothing(stages.as_ref().map(alive)),
            ];
            row(name, width, [6, 10, 9, 9, 11, 6, 9, 7], cells)?;
        }
    }
    Ok(())
}

fn or_nothing(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "–".to_owned())
}

fn megabytes(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// The conclusions from the tables in sentences: weights, bubbles, and activations of pipelines.
fn conclusions(outcomes: &[Outcome<'_>]) -> Vec<String> {
    let pipelines: Vec<(&str, &Outcome<'_>)> = outcomes
        .iter()
        .filter_map(|outcome| Some((outcome.way.stages()?.name.as_str(), outcome)))
        .collect();
    let alone = |outcome: &Outcome<'_>| match outcome.way.shards {
        1 => "one device".to_owned(),
        shards => format!("one device on {shards} micro-batches"),
    };
    let mut sentences = Vec::new();
    for reference in outcomes.iter().filter(|outcome| outcome.way.is_alone()) {
        for (equal, text) in [(true, "the weights of"), (false, "other weights than")] {
            // Sums over parts of a layer round in another way.
            let same = pipelines.iter().filter(|(_, it)| {
                it.way.shards == reference.way.shards
                    && it.way.mesh.tensor == 1
                    && it.summary.epochs_trained == reference.summary.epochs_trained
                    && (it.hash() == reference.hash()) == equal
            });
            let names = joined(same.map(|(name, _)| (*name).to_owned()));
            let end = if equal { ", to the last bit" } else { "" };
            if !names.is_empty() {
                sentences.push(format!("{names} ended with {text} {}{end}.", alone(reference)));
            }
        }
    }
    let mut bubbles: Vec<(f64, &str)> = pipelines
        .iter()
        .filter_map(|(name, it)| Some((it.stages.as_ref()?.measured_bubble * 100.0, *name)))
        .collect();
    bubbles.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let [(least, first), .., (most, last)] = bubbles.as_slice() {
        sentences.push(format!(
            "Devices wait least under {first} ({least:.0} % of the time) and most under {last} ({most:.0} %)."
        ));
    }
    let several = outcomes.iter().find(|it| it.way.is_alone() && it.way.shards > 1);
    let split = || pipelines.iter().filter(|(_, it)| it.way.shards > 1);
    if let (Some(several), Some(least)) = (several, split().map(|(_, it)| it.activations()).min()) {
        let of_stages = joined(
            split().map(|(name, it)| format!("{} MB under {name}", megabytes(it.activations()))),
        );
        sentences.push(format!(
            "Activations: {} keeps {} MB, and the fullest stage keeps {of_stages}. {}.",
            alone(several),
            megabytes(several.activations()),
            match least < several.activations() {
                true => "Micro-batches save this memory, and the cut into stages can save more",
                false => "Micro-batches save this memory on one device, too",
            }
        ));
    }
    sentences.extend((!sentences.is_empty()).then(String::new));
    sentences
}

/// `a, b and c`
fn joined(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// Draws each pipeline's step, measured below predicted.
fn write_gantt(path: &Path, title: &str, outcomes: &[Outcome<'_>]) -> anyhow::Result<()> {
    let of_pipelines = outcomes.iter().filter_map(|outcome| {
        let Stages { predicted, measured, .. } = outcome.stages.as_ref()?;
        Some(Beside { name: &outcome.way.name, predicted, measured })
    });
    let beside: Vec<Beside<'_>> = of_pipelines.collect();
    if beside.is_empty() {
        return Ok(());
    }
    let title = format!("One step of {title}");
    let svg = chart(&title, &beside).svg().map_err(anyhow::Error::from_boxed)?;
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
        let of = |makespans: &[f64]| median_step(makespans.iter().map(|&end| step(end)).collect());
        assert_eq!(of(&[100.0, 4.0, 2.0, 50.0]), Some(step(4.0)));
        assert_eq!(step(4.0).bubble(), 0.75);
        // One step is better than none.
        assert_eq!(of(&[10.0]), Some(step(10.0)));
        assert_eq!(of(&[]), None);
    }
}
