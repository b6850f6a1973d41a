//! The results of all ways: tables, sentences, and files.

use std::io;
use std::path::Path;

use concise_wrapper::replicas::verdict;
use drawing::Place;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::{Table, file, line, paragraph, seconds};
use harness::verdict::{Doubt, ranked, rounding};
use itertools::Itertools as _;
use model_parallel::Timeline;
use model_parallel::execute::Held;
use model_parallel::gantt::chart;
use model_parallel::mesh::Axis;
use model_state::weights_hash::WeightsHash;
use ops::difference::largest_difference;
use serde_json::json;

use crate::conclusions::{Figures, doubts_about_times, megabytes, of_memory, of_times, of_weights};
use crate::draw;
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
        if let Some(metrics) = &mut outputs.metrics {
            let peaks = way.predicted.as_ref().map(|it| {
                let of_stage =
                    |stage| json!({"peak": it.peak(stage), "total": it.peak_total(stage)});
                (0..it.stages).map(of_stage).collect_vec()
            });
            let line = json!({
                "run": way.name,
                "cut": if way.has_stages() { &way.cut[..] } else { &[] },
                "seconds_per_step": seconds_per_step,
                "held": held,
                "predicted": way.predicted,
                "predicted_bubble": way.predicted.as_ref().map(Timeline::bubble),
                "measured": measured,
                "measured_bubble": measured.as_ref().map(Timeline::bubble),
                "predicted_held": peaks,
            });
            metrics.write_json("split", &line)?;
        }
        Ok(Self { way, trained, summary, seconds_per_step, differences, measured })
    }

    /// The name of the way in a sentence.
    fn subject(&self) -> String {
        match self.way.shards {
            shards if self.way.is_alone() && shards > 1 => {
                format!("one device on {shards} micro-batches")
            }
            _ => self.way.label.clone(),
        }
    }

    /// The numbers for the conclusions.
    fn figures(&self) -> Figures {
        let Way { mesh, by_shards, ref predicted, .. } = *self.way;
        let idle = predicted.as_ref().zip(self.measured.as_ref());
        // The prediction is about whole layers and running sums.
        let weighed = predicted.iter().filter(|_| mesh.tensor == 1 && !by_shards);
        let errors = weighed.flat_map(|it| {
            self.trained.held.iter().enumerate().map(|(device, held)| {
                it.peak(mesh.coordinate(device, Axis::Pipeline)).largest_error(held.peak)
            })
        });
        Figures {
            name: self.subject(),
            devices: mesh.devices(),
            replicas: mesh.data,
            has_same_bits: mesh.tensor == 1 && (mesh.data == 1 || by_shards),
            shards: self.way.shards,
            epochs: self.summary.epochs_trained,
            seconds_per_step: self.seconds_per_step,
            idle: idle.map(|(predicted, measured)| [predicted.bubble(), measured.bubble()]),
            bytes: self.trained.held.iter().map(|held| held.total).max().unwrap_or(0),
            error_of_bytes: errors.reduce(f64::max),
            errors: self.differences,
            hash: self.summary.weights_hash.clone(),
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

/// Prints the results, and tables of them with a conclusion each. Then writes the files of the run.
pub(crate) fn report(
    outcomes: &[Outcome<'_>],
    prepared: &Prepared,
    gantt: Option<&Path>,
    headline: &str,
    outputs: &Outputs,
) -> anyhow::Result<()> {
    if outcomes.is_empty() {
        return Ok(());
    }
    line("")?;
    for outcome in outcomes {
        // The conclusion has a note for all busy runs.
        line(Summary { run: outcome.subject(), busy: None, ..outcome.summary.clone() })?;
    }
    let figures: Vec<Figures> = outcomes.iter().map(Outcome::figures).collect();
    let doubts = Doubt::about(&outcomes.iter().map(|it| &it.summary).collect_vec());
    let doubts = doubts_about_times(&figures, doubts);
    let dtype = prepared.setup.dtype.as_str();
    let rounding = rounding(dtype, prepared.devices_of(outcomes[0].way).is_of_slices());
    print_block(&errors(outcomes), &of_weights(&figures, dtype, rounding))?;
    for Outcome { way, trained, .. } in outcomes.iter().filter(|it| it.trained.replicas.len() > 1) {
        paragraph(format_args!("{}: {}.", way.name, verdict(&trained.replicas)))?;
    }
    print_block(&times(outcomes, &doubts), &of_times(&figures, &doubts))?;
    print_block(&memory(outcomes), &of_memory(&figures))?;
    // An error of one file does not prevent the next file.
    let written = outputs.write(headline);
    let drawn = gantt.map_or(Ok(()), |path| write_gantt(path, headline, outcomes, &doubts));
    let pipeline = prepared.ways.iter().find(|way| way.has_stages());
    let list = prepared.flags.export.as_deref().zip(pipeline);
    let exported =
        list.map_or(Ok(()), |(path, way)| draw::write_list(path, way.checked.schedule()));
    written?;
    drawn?;
    exported
}

/// Prints a table below an empty line, if the table has rows, and then its conclusion.
fn print_block((title, table): &(&str, Option<Table>), conclusion: &str) -> io::Result<()> {
    if let Some(table) = table {
        paragraph(format_args!("\n{title}"))?;
        table.print()?;
    }
    if conclusion.is_empty() { Ok(()) } else { paragraph(conclusion) }
}

fn dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "–".to_owned())
}

/// The cell of a column about stages. Without any stages the column is empty, and tables leave out empty columns.
fn of_stages(outcomes: &[Outcome<'_>], cell: Option<String>) -> String {
    match outcomes.iter().any(|it| it.way.has_stages()) {
        true => dash(cell),
        false => String::new(),
    }
}

/// The differences from one device. `None` where nothing is compared.
fn errors(outcomes: &[Outcome<'_>]) -> (&'static str, Option<Table>) {
    let table = Table::new("").column("micro-\nbatches", 1);
    let mut table = table.column("error\nafter 1 step", 0).column("error\nat the end", 0);
    for Outcome { way, differences, .. } in outcomes {
        let error = |error: Option<f64>| match error? {
            0.0 => Some("0".to_owned()),
            error => Some(format!("{error:.1e}")),
        };
        let [first, last] = differences.map(|it| dash(error(it)));
        table.row([way.label.clone(), way.shards.to_string(), first, last]);
    }
    let compared = outcomes.iter().any(|it| it.differences[0].is_some());
    (
        "Weights: the largest difference from the weights of one device (error)",
        compared.then_some(table),
    )
}

/// The time of a step, and the idle time of pipelines.
fn times(outcomes: &[Outcome<'_>], doubts: &[Doubt]) -> (&'static str, Option<Table>) {
    let one = outcomes.iter().find(|it| it.way.is_alone()).map(|one| one.seconds_per_step);
    let table = Table::new("").column("micro-\nbatches", 1).column("s/step", 0);
    let table = table.column("speed-up", 0).column("idle, %,\npredicted", 2);
    let mut table = table.column("idle, %,\nmeasured", 1);
    for it in outcomes {
        let percent = |timeline: &Timeline| format!("{:.0}", timeline.bubble() * 100.0);
        table.row([
            it.way.label.clone(),
            it.way.shards.to_string(),
            seconds(it.seconds_per_step),
            speed_up(doubts, one, it.seconds_per_step),
            of_stages(outcomes, it.way.predicted.as_ref().map(percent)),
            of_stages(outcomes, it.measured.as_ref().map(percent)),
        ]);
    }
    ("Time of a step, and the devices' idle time (bubble)", Some(table))
}

/// The cell of a speed-up over one device. With doubts about the times, the column is empty, and tables leave out empty columns.
fn speed_up(doubts: &[Doubt], one: Option<f64>, seconds: f64) -> String {
    match doubts {
        [] => dash(one.map(|one| format!("{:.2}×", one / seconds))),
        _ => String::new(),
    }
}

/// The bytes that devices hold and send. Devices with the same numbers share a row. Of more than four rows, a way has
/// the fullest device's and the emptiest device's.
fn memory(outcomes: &[Outcome<'_>]) -> (&'static str, Option<Table>) {
    let table = Table::new("").column("device", 0).column("para-\nmeters", 2);
    let table = table.column("gradi-\nents", 2).column("opt.\nstate", 3);
    let table = table.column("activa-\ntions", 1).column("mes-\nsages", 4);
    let mut table = table.column("in\nall", 0).column("sent", 5);
    for Outcome { way, trained, .. } in outcomes {
        let row = |&device: &usize| trained.held[device];
        for (place, devices) in shown(trained.held.len(), row, |held| held.total).enumerate() {
            let Held { peak, total, sent } = row(&devices[0]);
            let name = if place == 0 { way.label.clone() } else { String::new() };
            let parts = peak.kinds().map(|(_, bytes)| bytes).into_iter().chain([total]);
            let sent = of_stages(outcomes, Some(sent).filter(|&sent| sent > 0).map(megabytes));
            let cells = [name, ranges(&devices)].into_iter().chain(parts.map(megabytes));
            table.row(cells.chain([sent]));
        }
    }
    ("Memory of each device, and what a stage sends in a step, in MB", Some(table))
}

/// Groups so many devices by their `row` of a table. Of more than four groups, only those with the largest and the
/// smallest `size` are left.
fn shown<R: PartialEq>(
    devices: usize,
    row: impl Fn(&usize) -> R,
    size: impl Fn(&R) -> usize,
) -> impl Iterator<Item = Vec<usize>> {
    /// The most rows of a way.
    const MOST_ROWS: usize = 4;
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for device in 0..devices {
        match groups.iter_mut().find(|group| row(&group[0]) == row(&device)) {
            Some(group) => group.push(device),
            None => groups.push(vec![device]),
        }
    }
    let size = |group: &&Vec<usize>| size(&row(&group[0]));
    if groups.len() > MOST_ROWS {
        let ends = [groups.iter().max_by_key(size), groups.iter().min_by_key(size)];
        groups = ends.into_iter().flatten().cloned().collect();
    }
    groups.into_iter()
}

/// `0–1, 4–5`
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let text = |run: &[usize]| match run {
        [first, .., last] => format!("{first}–{last}"),
        alone => alone.iter().join(""),
    };
    runs.map(text).join(", ")
}

/// Draws each pipeline's step, measured below predicted. Doubts about the times come first.
fn write_gantt(
    path: &Path,
    title: &str,
    outcomes: &[Outcome<'_>],
    doubts: &[Doubt],
) -> anyhow::Result<()> {
    let pipelines = outcomes.iter().filter_map(|Outcome { way, measured, .. }| {
        Some((way.name.as_str(), [way.predicted.as_ref()?, measured.as_ref()?]))
    });
    let pipelines: Vec<_> = pipelines.collect();
    if pipelines.is_empty() {
        return Ok(());
    }
    let title = format!("One step of {title}");
    let doubt = (!doubts.is_empty()).then(|| ranked(doubts, String::new));
    let svg = chart(&title, doubt, &pipelines).svg(Place::File);
    Ok(file::write_flag("--gantt", path, |file| file.write_all(svg.as_bytes()))?)
}

#[cfg(test)]
mod tests {
    use model_parallel::Bytes;
    use model_parallel::instructions::{Action, Instruction};
    use model_parallel::simulate::Span;

    use super::*;

    /// One stage that is busy for a second, and done after so many.
    fn step(makespan: f64) -> Timeline {
        let span = |action, start, end| Span {
            stage: 0,
            instruction: Instruction { unit: 0, action },
            held: Bytes::default(),
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
    fn with_a_doubt_about_times_there_is_no_ratio() {
        let of = |doubts: &[Doubt]| [Some(1.0), None].map(|one| speed_up(doubts, one, 0.5));
        assert_eq!(of(&[]), ["2.00×", "–"]);
        assert_eq!(of(&[Doubt::Busy]), ["", ""]);
    }

    #[test]
    fn devices_with_the_same_numbers_share_a_row() {
        let groups = |held: &[usize]| {
            let row = |&device: &usize| held[device];
            shown(held.len(), row, |&held| held).map(|group| ranges(&group)).collect::<Vec<_>>()
        };
        assert_eq!(groups(&[7, 7, 3, 3, 7, 7, 3, 3]), ["0–1, 4–5", "2–3, 6–7"]);
        assert_eq!(groups(&[1, 2, 3, 4]), ["0", "1", "2", "3"]);
        // The fullest and the emptiest of many.
        assert_eq!(groups(&[4, 9, 3, 1, 2, 1]), ["1", "3, 5"]);
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
