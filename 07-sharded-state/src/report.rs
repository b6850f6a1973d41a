//! The results of all runs: a table with a conclusion, and files.

use harness::report::{Table, seconds};
use harness::verdict::{Doubt, ranked, rounding, rounding_test};
use itertools::Itertools as _;
use model_parallel::Timeline;
use model_parallel::bytes::megabytes;
use model_parallel::runs::{
    self, BYTES, Block, cells_of_bytes, error_of_peaks, largest_error, table,
};

use crate::plan::Facts;

/// The results of a run.
type Outcome<'a> = runs::Outcome<'a, Facts>;

/// The doubts about the times, and a table with its conclusion.
pub(crate) fn conclude(all: &[Outcome<'_>]) -> (Vec<Doubt>, Vec<Block>) {
    let doubts = Doubt::about(&all.iter().map(|it| &it.summary).collect_vec());
    let title = "What a device holds at most and sends in a step, in MB";
    let block = (Some((title, numbers(all))), conclusion(all, &doubts));
    (doubts, vec![block])
}

/// The numbers of each run, predicted below measured.
fn numbers(all: &[Outcome<'_>]) -> Table {
    let rows = all.iter().flat_map(|Outcome { run, trained, seconds_per_step, .. }| {
        let loss = trained.records.last().map_or(f64::NAN, |record| record.train_loss);
        let (found, predicted) = (&trained.held[0], &run.held[0]);
        let [sent, of_formula] = [found, predicted].map(|it| megabytes(it.sent));
        // The formula leaves out activations, which the parts of a layer send.
        let hidden = (run.mesh.tensor > 1).then(|| "–".to_owned());
        let step = seconds(run.step.as_ref().map_or(f64::NAN, Timeline::makespan));
        let row = |name: &str, held, more: [String; 3]| {
            [&[name.to_owned()], &cells_of_bytes(held, false)[..], &more].concat()
        };
        [
            row(&run.name, found, [sent, seconds(*seconds_per_step), format!("{loss:.4}")]),
            row("  predicted", predicted, [hidden.unwrap_or(of_formula), step, String::new()]),
        ]
    });
    table(&[&BYTES[..], &[("sent", 0), ("s/step", 0), ("loss", 5)]].concat(), rows)
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
    if let Some(percent) = error_of_peaks(all) {
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
