//! The results of all runs: a table with a conclusion, and files.

use concise_wrapper::launch::Launch;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::{Table, line, paragraph, seconds};
use harness::verdict::{Doubt, ranked, rounding, rounding_test};
use itertools::Itertools as _;
use model_parallel::bytes::megabytes;
use model_parallel::generate::print_text;
use model_parallel::runs::{self, Trained, draw_steps, largest_error};
use model_parallel::simulate::Held;
use model_parallel::{Bytes, Timeline};
use serde_json::json;

use crate::plan::{Prepared, Run};

/// The results of a run.
type Outcome<'a> = runs::Outcome<'a, Run>;

/// Summarises the results of a run, and writes them to the files of the program. `first` is the first run.
pub(crate) fn outcome<'a>(
    run: &'a Run,
    trained: Trained,
    first: Option<&Outcome<'a>>,
    (launch, Prepared { training, .. }): (&Launch, &Prepared),
    outputs: &mut Outputs,
) -> anyhow::Result<Outcome<'a>> {
    let plan = training.plan(run.mesh.devices());
    let steps = (Some(&run.step), Timeline::makespan as fn(&_) -> _);
    let of_run = (run, &*run.name, run.name.clone(), plan);
    let outcome = Outcome::new(of_run, trained, first, steps, (launch, &training.setup), outputs)?;
    if let Some(metrics) = &mut outputs.metrics {
        let Outcome { trained, seconds_per_step, errors, steps, .. } = &outcome;
        let measured = steps.as_ref().map(|[_, measured]| measured);
        let line = json!({"run": run.name, "seconds_per_step": seconds_per_step, "error_after_one_step": errors[0],
            "held": trained.held[0], "predicted_held": run.held, "measured": measured, "predicted": run.step});
        metrics.write_json("sharded", &line)?;
    }
    Ok(outcome)
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
    if prepared.training.layers.takes_tokens() {
        print_text(all, &prepared.training)?;
    }
    paragraph("\nWhat a device holds at most and sends in a step, in MB")?;
    table(all).print()?;
    let doubts = Doubt::about(&all.iter().map(|it| &it.summary).collect_vec());
    paragraph(conclusion(all, &doubts))?;
    // An error of one file does not prevent the next file.
    let written = outputs.write(headline);
    let steps = all.iter().filter_map(|it| Some((&*it.run.name, it.steps.as_ref()?.each_ref())));
    let (path, title) = (prepared.flags.common.gantt.as_deref(), format!("One step of {headline}"));
    Ok(written.and(draw_steps(path, &title, &doubts, &steps.collect_vec()))?)
}

/// The numbers of each run, predicted below measured.
fn table(all: &[Outcome<'_>]) -> Table {
    let table = Table::new("").column("para-\nmeters", 1).column("gradi-\nents", 3);
    let table = table.column("opt.\nstate", 4).column("activa-\ntions", 2).column("in\nall", 0);
    let mut table = table.column("sent", 0).column("s/step", 0).column("loss", 5);
    for Outcome { run, trained, seconds_per_step, .. } in all {
        let loss = trained.records.last().map_or(f64::NAN, |record| record.train_loss);
        let [sent, predicted] = [trained.held[0], run.held].map(|it| megabytes(it.sent));
        // The formula leaves out activations, which the parts of a layer send.
        let predicted = if run.mesh.tensor > 1 { "–".to_owned() } else { predicted };
        for (name, Held { peak, total, .. }, sent, time, loss) in [
            (&*run.name, trained.held[0], sent, *seconds_per_step, format!("{loss:.4}")),
            ("  predicted", run.held, predicted, run.step.makespan(), String::new()),
        ] {
            let Bytes { parameters, gradients, optimizer, activations, .. } = peak;
            let bytes = [parameters, gradients, optimizer, activations, total];
            let cells = bytes.map(megabytes).into_iter().chain([sent, seconds(time), loss]);
            table.row([name.to_owned()].into_iter().chain(cells));
        }
    }
    table
}

/// Names the strategy of the least memory and its price, the error of the predicted peaks, and the difference of the weights.
fn conclusion(all: &[Outcome<'_>], doubts: &[Doubt]) -> String {
    let mut text = Vec::new();
    let several = || all.iter().filter(|it| it.run.mesh.devices() > 1);
    let least = several().min_by_key(|it| it.bytes()).zip(several().next());
    if let Some((least, first)) = least.filter(|(a, b)| a.run.name != b.run.name) {
        let [bytes, of_first] = [least, first].map(|it| megabytes(it.bytes()));
        let sent = least.trained.held[0].sent as f64 / first.trained.held[0].sent as f64;
        let longer = least.seconds_per_step / first.seconds_per_step;
        let longer = format!(", and a step takes {longer:.2} times as long");
        let longer = if doubts.is_empty() { &*longer } else { "" };
        text.push(format!(
            "Least memory: {}, {bytes} MB, where {} has {of_first} MB. The price: {sent:.2} times as much is sent{longer}.",
            least.run.name, first.run.name
        ));
    }
    text.push(ranked(doubts, String::new));
    let errors = all.iter().map(|it| it.run.held.peak.largest_error(it.trained.held[0].peak));
    if let Some(error) = errors.filter(|it| it.is_finite()).reduce(f64::max) {
        let percent = (100.0 * error).ceil();
        text.push(format!("The predicted peaks are off by {percent:.0} % at most."));
    }
    if let Some(error) = largest_error(all, 0) {
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
