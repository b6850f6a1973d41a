//! The results of all ways: tables, sentences, and files.

use std::io;
use std::path::Path;

use concise_wrapper::replicas::verdict;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::{file, line, seconds};
use itertools::Itertools as _;
use model_parallel::mesh::Axis;
use model_parallel::pipeline::drawing::chart;
use model_parallel::pipeline::{Kind, Timeline};
use ops::difference::largest_difference;
use ops::weights_hash::WeightsHash;
use serde_json::json;

use crate::plan::{Prepared, Way};
use crate::train::Trained;

/// The results of a way.
pub(crate) struct Outcome<'a> {
    way: &'a Way,
    trained: Trained,
    summary: Summary,
    seconds_per_step: f64,
    /// The largest differences from the weights of one device, after the first step and at the end.
    differences: [Option<f64>; 2],
    /// A pipeline's step with the median bubble.
    measured: Option<Timeline>,
}

impl<'a> Outcome<'a> {
    /// Summarises the results of a way, and writes them to the files of the run. `before` has the earlier ways.
    pub(crate) fn new(
        way: &'a Way,
        prepared: &Prepared,
        mut trained: Trained,
        before: &[Outcome<'_>],
        outputs: &mut Outputs,
    ) -> anyhow::Result<Self> {
        // A pipeline has its weights by stage, and one device has parameters before buffers.
        trained.weights.iter_mut().for_each(|named| named.sort_by(|(a, _), (b, _)| a.cmp(b)));
        let Trained { records, weights, held, .. } = &trained;
        let (setup, hash) = (&prepared.setup, WeightsHash::new(&weights[1])?);
        let mut summary = setup.summary(&way.name, prepared.devices_of(way), records, hash);
        if !way.is_alone() {
            summary.devices.clone_from(&prepared.devices);
        }
        summary.method = (!way.is_alone()).then(|| way.title());
        outputs.run_ended(&summary, records)?;
        let batches = setup.data.train.len().div_ceil(setup.options.batch_size);
        let seconds_per_step = summary.seconds_per_epoch / batches as f64;
        // With batch norms, other micro-batches are another function.
        let comparable = |it: &&Outcome<'_>| {
            it.way.is_alone() && (it.way.shards == way.shards || !prepared.flags.has_norms())
        };
        let one = before.iter().find(comparable);
        // After an interrupt, a way may have trained for fewer epochs.
        let complete = one.filter(|it| it.summary.epochs_trained == summary.epochs_trained);
        let difference = |one: Option<&Outcome<'_>>, at: usize| {
            one.map(|it| largest_difference(&weights[at], &it.trained.weights[at])).transpose()
        };
        let differences = [difference(one, 0)?, difference(complete, 1)?];
        let measured = median_step(&trained.steps).filter(|_| way.has_stages());
        if let Some(metrics) = outputs.metrics() {
            let (alive, micro_batches) = way.alive().unzip();
            let line = json!({
                "run": way.name,
                "cut": if way.has_stages() { &way.cut[..] } else { &[] },
                "seconds_per_step": seconds_per_step,
                "held": held,
                "predicted": way.predicted,
                "predicted_bubble": way.predicted.as_ref().map(Timeline::bubble),
                "measured": measured,
                "measured_bubble": measured.as_ref().map(Timeline::bubble),
                "alive": alive,
                "micro_batches": micro_batches,
            });
            metrics.write("split", &line)?;
        }
        Ok(Self { way, trained, summary, seconds_per_step, differences, measured })
    }

    /// The largest number of bytes of activations on a device.
    fn activations(&self) -> usize {
        self.trained.held.iter().map(|held| held.activations).max().unwrap_or(0)
    }

    fn hash(&self) -> &str {
        &self.summary.weights_hash[..8]
    }

    /// The way in a sentence.
    fn subject(&self) -> String {
        match (self.way.kind, self.way.shards) {
            (_, 1) if self.way.is_alone() => "one device".to_owned(),
            (_, shards) if self.way.is_alone() => format!("one device on {shards} micro-batches"),
            (Kind::Interleaved { chunks }, _) => format!("interleaved 1F1B ({chunks} chunks)"),
            (kind, _) => kind.to_string(),
        }
    }
}

/// The step with the median bubble, without the first step if there are more. The first step uses memory that the
/// system has not provided yet.
fn median_step(steps: &[Timeline]) -> Option<Timeline> {
    let mut steps: Vec<&Timeline> = steps.iter().skip((steps.len() > 1).into()).collect();
    steps.sort_by(|a, b| a.bubble().total_cmp(&b.bubble()));
    steps.get(steps.len() / 2).copied().cloned()
}

/// Prints the tables and their conclusions, then writes the files of the run.
pub(crate) fn report(
    outcomes: &[Outcome<'_>],
    gantt: Option<&Path>,
    headline: &str,
    outputs: &Outputs,
) -> anyhow::Result<()> {
    if outcomes.is_empty() {
        return Ok(());
    }
    print_tables(outcomes)?;
    line("")?;
    conclusions(outcomes).iter().try_for_each(line)?;
    for Outcome { summary, .. } in outcomes {
        line(summary)?;
    }
    for Outcome { way, trained, .. } in outcomes.iter().filter(|it| it.trained.replicas.len() > 1) {
        line(format_args!("{}: {}", way.name, verdict(&trained.replicas)))?;
    }
    // An error of the first file does not prevent the second file.
    let written = outputs.write(headline);
    let drawn = gantt.map_or(Ok(()), |path| write_gantt(path, headline, outcomes));
    written?;
    drawn
}

/// The heading of a column, which is as wide as the column, and the cell for a device of a way.
type Column<'a> = (&'a str, &'a dyn Fn(&Outcome<'_>, usize) -> Option<String>);

/// Prints a table of these devices. The title is as wide as the longest name of a way.
fn print_table<'a>(
    title: &str,
    columns: &[Column<'_>],
    devices: impl Iterator<Item = (&'a Outcome<'a>, usize)>,
) -> io::Result<()> {
    line(format_args!("{title}  {}", columns.iter().map(|(heading, _)| heading).join("  ")))?;
    for (outcome, device) in devices {
        let name = if device == 0 { &outcome.way.name } else { "" };
        let cell = |(heading, cell): &Column<'_>| {
            let cell = cell(outcome, device).unwrap_or_else(|| "–".to_owned());
            format!("{cell:>0$}", heading.chars().count())
        };
        let cells = columns.iter().map(cell).join("  ");
        line(format_args!("{name:0$}  {cells}", title.chars().count()))?;
    }
    Ok(())
}

/// Prints two tables: times, bubbles and differences from one device; and the bytes that each device holds and sends.
fn print_tables(outcomes: &[Outcome<'_>]) -> io::Result<()> {
    let title = "MB held by a device";
    let names = outcomes.iter().map(|it| it.way.name.chars().count());
    let width = names.chain([title.len()]).max().unwrap_or(0);
    let one = outcomes.iter().find(|it| it.way.is_alone());
    let percent =
        |timeline: Option<&Timeline>| Some(format!("{:.0} %", timeline?.bubble() * 100.0));
    let difference = |difference: Option<f64>| Some(format!("{:.1e}", difference?));
    let times: [Column<'_>; _] = [
        ("  s/step", &|it, _| Some(seconds(it.seconds_per_step))),
        ("speed-up", &|it, _| Some(format!("{:.2}×", one?.seconds_per_step / it.seconds_per_step))),
        ("predicted", &|it, _| percent(it.way.predicted.as_ref())),
        ("measured", &|it, _| percent(it.measured.as_ref())),
        ("after 1 step", &|it, _| difference(it.differences[0])),
        ("at the end", &|it, _| difference(it.differences[1])),
        ("weights", &|it, _| Some(it.hash().to_owned())),
    ];
    line(format_args!("\n{:width$}  {:>39}  {:>24}", "", "bubble", "largest difference"))?;
    print_table(&" ".repeat(width), &times, outcomes.iter().map(|it| (it, 0)))?;
    let alive = |way: &Way, device| {
        let (alive, all) = way.alive()?;
        Some(format!("{} of {all}", alive[way.mesh.coordinate(device, Axis::Pipeline)]))
    };
    let bytes: [Column<'_>; _] = [
        ("device", &|_, device| Some(device.to_string())),
        ("parameters", &|it, device| Some(megabytes(it.trained.held[device].parameters))),
        ("gradients", &|it, device| Some(megabytes(it.trained.held[device].gradients))),
        ("optimizer", &|it, device| Some(megabytes(it.trained.held[device].optimizer))),
        ("activations", &|it, device| Some(megabytes(it.trained.held[device].activations))),
        ("in all", &|it, device| Some(megabytes(it.trained.held[device].total()))),
        ("sent/step", &|it, device| {
            Some(it.trained.held[device].sent).filter(|&sent| sent > 0).map(megabytes)
        }),
        ("  alive", &|it, device| alive(it.way, device)),
    ];
    line("")?;
    let devices =
        outcomes.iter().flat_map(|it| (0..it.trained.held.len()).map(move |device| (it, device)));
    print_table(&format!("{title:width$}"), &bytes, devices)
}

fn megabytes(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// The conclusions from the tables in sentences, then an empty line: weights, bubbles, and activations of pipelines.
fn conclusions(outcomes: &[Outcome<'_>]) -> Vec<String> {
    let pipelines = || outcomes.iter().filter(|it| it.way.has_stages());
    let alone = || outcomes.iter().filter(|it| it.way.is_alone());
    let mut sentences = Vec::new();
    for one in alone() {
        // Sums over parts of a layer round in another way.
        let comparable = |it: &&Outcome<'_>| {
            (it.way.shards, it.way.mesh.tensor) == (one.way.shards, 1)
                && it.summary.epochs_trained == one.summary.epochs_trained
        };
        for (equal, text) in [(true, "the weights of"), (false, "other weights than")] {
            let ways =
                pipelines().filter(comparable).filter(|it| (it.hash() == one.hash()) == equal);
            let names = joined(ways.map(Outcome::subject));
            let end = if equal { ", to the last bit" } else { "" };
            if !names.is_empty() {
                sentences.push(format!("{names} ended with {text} {}{end}.", one.subject()));
            }
        }
    }
    let bubble = |it: &Outcome<'_>| Some((it.measured.as_ref()?.bubble() * 100.0, it.subject()));
    let mut bubbles: Vec<(f64, String)> = pipelines().filter_map(bubble).collect();
    bubbles.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let [(least, first), .., (most, last)] = bubbles.as_slice() {
        sentences.push(format!(
            "Devices wait least under {first} ({least:.0} % of the time) and most under {last} ({most:.0} %)."
        ));
    }
    let cut = || pipelines().filter(|it| it.way.shards > 1);
    let least = cut().map(Outcome::activations).min();
    if let (Some(one), Some(least)) = (alone().find(|it| it.way.shards > 1), least) {
        let each =
            |it: &Outcome<'_>| format!("{} MB under {}", megabytes(it.activations()), it.subject());
        sentences.push(format!(
            "Activations: {} keeps {} MB, and the fullest stage keeps {}. {}.",
            one.subject(),
            megabytes(one.activations()),
            joined(cut().map(each)),
            match least < one.activations() {
                true => "Micro-batches save this memory, and the cut into stages can save more",
                false => "Micro-batches save this memory on one device, too",
            }
        ));
    }
    sentences.extend((!sentences.is_empty()).then(String::new));
    sentences
}

/// `a, b and c`
fn joined(mut names: impl Iterator<Item = String>) -> String {
    let names = names.join(", ");
    names.rsplit_once(", ").map_or(names.clone(), |(rest, last)| format!("{rest} and {last}"))
}

/// Draws each pipeline's step, measured below predicted.
fn write_gantt(path: &Path, title: &str, outcomes: &[Outcome<'_>]) -> anyhow::Result<()> {
    let pipelines = outcomes.iter().filter_map(|Outcome { way, measured, .. }| {
        Some((way.name.as_str(), [way.predicted.as_ref()?, measured.as_ref()?]))
    });
    let pipelines: Vec<_> = pipelines.collect();
    if pipelines.is_empty() {
        return Ok(());
    }
    let title = format!("One step of {title}");
    let svg = chart(&title, &pipelines).svg()?;
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
        let of = |makespans: &[f64]| {
            median_step(&makespans.iter().map(|&end| step(end)).collect::<Vec<_>>())
        };
        assert_eq!(of(&[100.0, 4.0, 2.0, 50.0]), Some(step(4.0)));
        assert_eq!(step(4.0).bubble(), 0.75);
        // One step is better than none.
        assert_eq!(of(&[10.0]), Some(step(10.0)));
        assert_eq!(of(&[]), None);
    }
}
