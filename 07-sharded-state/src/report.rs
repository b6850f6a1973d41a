//! The results of all runs: a table with a conclusion, and files.

use drawing::Place;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::{Table, file, line, paragraph, seconds};
use harness::verdict::{Doubt, ranked, rounding, rounding_test};
use itertools::Itertools as _;
use model_parallel::execute::Held;
use model_parallel::gantt::chart;
use model_parallel::{Bytes, Timeline};
use model_state::weights_hash::WeightsHash;
use ops::difference::largest_difference;
use serde_json::json;

use crate::plan::{Prepared, Run};
use crate::train::Trained;

/// The results of a run.
pub(crate) struct Outcome<'a> {
    run: &'a Run,
    trained: Trained,
    summary: Summary,
    predicted: Numbers,
    measured: Numbers,
    /// The largest difference from the weights of the first run, after one step.
    error: Option<f64>,
    /// The predicted step, and the measured step with the median time.
    steps: [Timeline; 2],
}

/// The bytes that the fullest device holds, those that a device sends in a step, and the seconds of the step.
#[derive(Clone, Copy)]
struct Numbers {
    peak: Bytes,
    total: usize,
    sent: usize,
    seconds: f64,
}

impl<'a> Outcome<'a> {
    /// Summarises the results of a run, and writes them to the files of the program. `first` is the first run.
    pub(crate) fn new(
        run: &'a Run,
        prepared: &Prepared,
        trained: Trained,
        first: Option<&Outcome<'_>>,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Self> {
        let (setup, Trained { records, weights: [after_one, last], held, steps }) =
            (&prepared.setup, &trained);
        let hash = WeightsHash::new(last)?;
        let mut summary = setup.summary(&run.name, prepared.devices_of(run), records, hash);
        if run.replicas > 1 {
            summary.devices.clone_from(&prepared.devices);
            summary.method = Some(run.title());
        }
        outputs.run_ended(&summary, records)?;
        let batches = setup.data.train.len().div_ceil(setup.options.batch_size);
        let most = |of: fn(&Held) -> usize| held.iter().map(of).max().unwrap_or(0);
        let measured = Numbers {
            peak: held.iter().fold(Bytes::default(), |most, it| most.with(it.peak, usize::max)),
            total: most(|it| it.total),
            sent: most(|it| it.sent),
            seconds: summary.seconds_per_epoch / batches as f64,
        };
        let (step, sent) = run.predicted.clone();
        let (peak, total) = (step.peak(0), step.peak_total(0));
        let predicted = Numbers { peak, total, sent, seconds: step.makespan() };
        let error = first.map(|it| largest_difference(after_one, &it.trained.weights[0]));
        let error = error.transpose()?;
        // The first step uses memory that the system has not provided yet.
        let by_time = |a: &&Timeline, b: &&Timeline| a.makespan().total_cmp(&b.makespan());
        let all = steps.iter().skip(usize::from(steps.len() > 1)).sorted_by(by_time).collect_vec();
        let median = all.get(all.len() / 2).map_or(&step, |it| *it).clone();
        let outcome =
            Self { run, trained, summary, predicted, measured, error, steps: [step, median] };
        if let Some(metrics) = &mut outputs.metrics {
            metrics.write_json("sharded", &outcome.line())?;
        }
        Ok(outcome)
    }

    /// The line of the metrics.
    fn line(&self) -> serde_json::Value {
        let numbers = |it: &Numbers| json!({"peak": it.peak, "total": it.total, "sent": it.sent, "seconds_per_step": it.seconds});
        let [predicted, measured] = [&self.predicted, &self.measured].map(numbers);
        json!({
            "run": self.run.name,
            "predicted": predicted,
            "measured": measured,
            "held": self.trained.held,
            "steps": self.steps,
            "error_after_one_step": self.error,
        })
    }

    /// The mean loss of the last epoch.
    fn loss(&self) -> f64 {
        self.trained.records.last().map_or(f64::NAN, |record| record.train_loss)
    }
}

/// Prints the results, a table, and a conclusion. Then writes the files of the program.
pub(crate) fn report(
    outcomes: &[Outcome<'_>],
    prepared: &Prepared,
    headline: &str,
    outputs: &Outputs,
) -> anyhow::Result<()> {
    if outcomes.is_empty() {
        return Ok(());
    }
    line("")?;
    for Outcome { summary, .. } in outcomes {
        // The conclusion has a note for all busy runs.
        line(Summary { busy: None, ..summary.clone() })?;
    }
    let link = match prepared.slowness {
        Some(link) => format!(" over a link of {} MB/s", harness::report::number(link.megabytes())),
        None => String::new(),
    };
    paragraph(format_args!("\nWhat a device holds at most and sends in a step{link}, in MB"))?;
    table(outcomes).print()?;
    let doubts = Doubt::about(&outcomes.iter().map(|it| &it.summary).collect_vec());
    let on_slices = prepared.devices_of(outcomes[0].run).is_of_slices();
    paragraph(conclusion(outcomes, &doubts, on_slices))?;
    // An error of one file does not prevent the next file.
    let written = outputs.write(headline);
    let steps = outcomes.iter().map(|it| (&*it.run.name, it.steps.each_ref())).collect_vec();
    let drawn = prepared.flags.gantt.as_deref().map_or(Ok(()), |path| {
        let doubt = (!doubts.is_empty()).then(|| ranked(&doubts, String::new));
        let svg = chart(&format!("One step of {headline}"), doubt, &steps).svg(Place::File);
        file::write_flag("--gantt", path, |file| file.write_all(svg.as_bytes()))
    });
    Ok(written.and(drawn)?)
}

/// The numbers of each run, predicted below measured.
fn table(outcomes: &[Outcome<'_>]) -> Table {
    let table = Table::new("").column("para-\nmeters", 1).column("gradi-\nents", 2);
    let table = table.column("opt.\nstate", 3).column("activa-\ntions", 4).column("in\nall", 0);
    let mut table = table.column("sent", 0).column("s/step", 0).column("loss", 0);
    for it in outcomes {
        let loss = format!("{:.4}", it.loss());
        let rows = [(&*it.run.name, &it.measured, &*loss), ("  predicted", &it.predicted, "")];
        for (name, Numbers { peak, total, sent, seconds: time }, loss) in rows {
            let Bytes { parameters, gradients, optimizer, activations, .. } = *peak;
            let bytes = [parameters, gradients, optimizer, activations, *total, *sent];
            let numbers = bytes.map(megabytes).into_iter().chain([seconds(*time), loss.to_owned()]);
            table.row([name.to_owned()].into_iter().chain(numbers));
        }
    }
    table
}

/// Names the strategy of the least memory and its price, the error of the predicted peaks, and the difference of the weights.
fn conclusion(all: &[Outcome<'_>], doubts: &[Doubt], on_slices: bool) -> String {
    let (first, dtype) = (&all[0], &*all[0].summary.dtype);
    let Some(least) = all.iter().min_by_key(|it| it.measured.total) else { return String::new() };
    let amount = |it: &Outcome<'_>| megabytes(it.measured.total);
    let mut text = vec![format!("Least memory: {}, {} MB.", least.run.name, amount(least))];
    if let Some(plain) = all.iter().find(|it| it.run.replicas > 1 && it.run.name != least.run.name)
    {
        let ratio = |of: fn(&Numbers) -> f64| of(&least.measured) / of(&plain.measured);
        let time = match doubts {
            [] => format!(", and a step takes {:.2} times as long", ratio(|it| it.seconds)),
            _ => String::new(),
        };
        text.push(format!(
            "{} needs {} MB; against it, {} sends {:.2} times as much{time}.",
            plain.run.name,
            amount(plain),
            least.run.name,
            ratio(|it| it.sent as f64),
        ));
    }
    text.push(ranked(doubts, String::new));
    let errors = all.iter().map(|it| it.predicted.peak.largest_error(it.measured.peak));
    if let Some(error) = errors.filter(|it| it.is_finite()).reduce(f64::max) {
        text.push(format!(
            "The predicted peaks are off by {:.0} % at most.",
            (100.0 * error).ceil()
        ));
    }
    if let Some(error) = all.iter().filter_map(|it| it.error).reduce(f64::max) {
        let judged = match error <= rounding(dtype, on_slices) {
            true => "which is rounding",
            false => "which is more than rounding usually causes",
        };
        text.push(format!(
            "After one step, all weights equal those of {} up to {error:.1e}, {judged}.{}",
            first.run.name,
            rounding_test(dtype)
        ));
    }
    text.iter().filter(|it| !it.is_empty()).join(" ")
}

/// Formats bytes as megabytes.
fn megabytes(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}
