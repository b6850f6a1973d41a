//! The results of all runs: a table with a conclusion, and files.

use drawing::Place;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::{Table, file, line, paragraph, seconds};
use harness::verdict::{Doubt, ranked, rounding, rounding_test};
use itertools::Itertools as _;
use model_parallel::Bytes;
use model_parallel::bytes::megabytes;
use model_parallel::execute::Held;
use model_parallel::gantt::chart;
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
    seconds_per_step: f64,
    /// The largest difference from the weights of the first run, after one step.
    error: Option<f64>,
}

impl<'a> Outcome<'a> {
    /// Summarises the results of a run, and writes them to the files of the program.
    pub(crate) fn new(
        run: &'a Run,
        prepared: &Prepared,
        trained: Trained,
        first: Option<&Outcome<'_>>,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Self> {
        let Trained { records, weights: [after_one, last], held, step } = &trained;
        let (setup, hash) = (&prepared.setup, WeightsHash::new(last)?);
        let mut summary = setup.summary(&run.name, &run.plan, records, hash);
        if run.replicas > 1 {
            summary.devices.clone_from(&prepared.devices);
        }
        outputs.run_ended(&summary, records)?;
        let batches = setup.data.train.len().div_ceil(summary.options.batch_size);
        let seconds_per_step = summary.seconds_per_epoch / batches as f64;
        let error = first.map(|it| largest_difference(after_one, &it.trained.weights[0]));
        let error = error.transpose()?;
        if let Some(metrics) = &mut outputs.metrics {
            let line = json!({"run": run.name, "seconds_per_step": seconds_per_step, "error_after_one_step": error, "held": held,
                "predicted_held": run.held, "measured": step, "predicted": run.step});
            metrics.write_json("sharded", &line)?;
        }
        Ok(Self { run, trained, summary, seconds_per_step, error })
    }
}

/// Prints the results, a table, and a conclusion. Then writes the files of the program.
pub(crate) fn report(
    all: &[Outcome<'_>],
    prepared: &Prepared,
    headline: &str,
    outputs: &Outputs,
) -> anyhow::Result<()> {
    line("")?;
    // The conclusion has a note for all busy runs.
    all.iter().try_for_each(|it| line(Summary { busy: None, ..it.summary.clone() }))?;
    paragraph("\nWhat a device holds at most and sends in a step, in MB")?;
    table(all).print()?;
    let doubts = Doubt::about(&all.iter().map(|it| &it.summary).collect_vec());
    paragraph(conclusion(all, &doubts))?;
    // An error of one file does not prevent the next file.
    let written = outputs.write(headline);
    let drawn = prepared.flags.gantt.as_deref().map_or(Ok(()), |path| {
        let doubt = (!doubts.is_empty()).then(|| ranked(&doubts, String::new));
        let steps = all.iter().map(|it| {
            (&*it.run.name, [&it.run.step, it.trained.step.as_ref().unwrap_or(&it.run.step)])
        });
        let steps = steps.collect_vec();
        let svg = chart(&format!("One step of {headline}"), doubt, &steps).svg(Place::File);
        file::write_flag("--gantt", path, |file| file.write_all(svg.as_bytes()))
    });
    Ok(written.and(drawn)?)
}

/// The numbers of each run, predicted below measured.
fn table(all: &[Outcome<'_>]) -> Table {
    let table = Table::new("").column("para-\nmeters", 1).column("gradi-\nents", 3);
    let table = table.column("opt.\nstate", 4).column("activa-\ntions", 2).column("in\nall", 0);
    let mut table = table.column("sent", 0).column("s/step", 0).column("loss", 5);
    for Outcome { run, trained, seconds_per_step, .. } in all {
        let loss = trained.records.last().map_or(f64::NAN, |record| record.train_loss);
        for (name, Held { peak, total, sent }, time, loss) in [
            (&*run.name, trained.held, *seconds_per_step, format!("{loss:.4}")),
            ("  predicted", run.held, run.step.makespan(), String::new()),
        ] {
            let Bytes { parameters, gradients, optimizer, activations, .. } = peak;
            let bytes = [parameters, gradients, optimizer, activations, total, sent];
            let cells = bytes.map(megabytes).into_iter().chain([seconds(time), loss]);
            table.row([name.to_owned()].into_iter().chain(cells));
        }
    }
    table
}

/// Names the strategy of the least memory and its price, the error of the predicted peaks, and the difference of the weights.
fn conclusion(all: &[Outcome<'_>], doubts: &[Doubt]) -> String {
    let mut text = Vec::new();
    let several = || all.iter().filter(|it| it.run.replicas > 1);
    let least = several().min_by_key(|it| it.trained.held.total).zip(several().next());
    if let Some((least, first)) = least.filter(|(a, b)| a.run.name != b.run.name) {
        let [bytes, of_first] = [least, first].map(|it| megabytes(it.trained.held.total));
        let sent = least.trained.held.sent as f64 / first.trained.held.sent as f64;
        let longer = least.seconds_per_step / first.seconds_per_step;
        let longer = format!(", and a step takes {longer:.2} times as long");
        let longer = if doubts.is_empty() { &*longer } else { "" };
        text.push(format!(
            "Least memory: {}, {bytes} MB, where {} has {of_first} MB. The price: {sent:.2} times as much is sent{longer}.",
            least.run.name, first.run.name
        ));
    }
    text.push(ranked(doubts, String::new));
    let errors = all.iter().map(|it| it.run.held.peak.largest_error(it.trained.held.peak));
    if let Some(error) = errors.filter(|it| it.is_finite()).reduce(f64::max) {
        let percent = (100.0 * error).ceil();
        text.push(format!("The predicted peaks are off by {percent:.0} % at most."));
    }
    if let Some(error) = all.iter().filter_map(|it| it.error).reduce(f64::max) {
        let (one, dtype) = (&all[0].run.name, &*all[0].summary.dtype);
        // AdamW divides by the size of a gradient, so in f32 rounding errors of small gradients grow.
        let is_rounding = error <= if dtype == "f64" { rounding(dtype, true) } else { 1e-3 };
        let judged = if is_rounding { "as rounding does" } else { "more than rounding does" };
        let test = rounding_test(dtype);
        text.push(format!(
            "After one step the weights differ from those of {one} by {error:.1e}, {judged}.{test}"
        ));
    }
    text.iter().filter(|it| !it.is_empty()).join(" ")
}
