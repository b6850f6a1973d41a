//! The results of the runs: each by itself, together, and the table of `--compare`.
//!
//! `--compare N` answers why several devices are less accurate than one. With K devices, K times the batch and K times the rate,
//! there are fewer and longer steps, and a local batch norm sees other images. So each of the two changes by itself, with
//! several seeds. A third cause is the statistics that normalise test images: `--test-norm` changes these.

use concise_wrapper::ddp::Reduction;
use concise_wrapper::launch::Launch;
use concise_wrapper::train::Trained;
use harness::cli::name_of;
use harness::report::outputs::Outputs;
use harness::report::summary::Summary;
use harness::report::{line, rounded};
use itertools::Itertools as _;
use ops::weights_hash::WeightsHash;
use scratch_data_parallel::replicas::verdict;
use serde::Serialize;

use crate::arguments::{ModelKind, TestNorm, WrapperKind};
use crate::plan::{Prepared, Run};

/// A finished run.
pub(crate) struct Finished {
    run: Run,
    summary: Summary,
    /// A hash of the weights of every rank. Empty without ranks.
    replicas: Vec<WeightsHash>,
}

impl Finished {
    /// Summarises a run, and writes the summary to the metrics. All processes call this together.
    pub(crate) fn new(
        run: Run,
        (trained, replicas): (Trained, Vec<WeightsHash>),
        launch: &Launch,
        prepared: &Prepared,
        outputs: &mut Outputs,
    ) -> anyhow::Result<Self> {
        let hash = WeightsHash::new(&trained.weights)?;
        let summary = prepared.setup.summary(run.name, &run.devices, &trained.records, hash);
        let (options, method) = (run.options, method(&run, prepared));
        let devices = launch.devices(&run.devices)?;
        let summary = Summary { devices, options, method, ..summary };
        outputs.run_ended(&summary, &trained.records)?;
        Ok(Self { run, summary, replicas })
    }
}

/// Describes how the gradients of several devices became one update.
/// One device has no method.
fn method(run: &Run, Prepared { flags, reduction, .. }: &Prepared) -> Option<String> {
    let norms = match flags.model {
        ModelKind::Lenet => String::new(),
        ModelKind::Resnet18 => format!(", {} batch norm", run.norm.name()),
    };
    let wrapper = match (run.wrapper, reduction) {
        (WrapperKind::Single, _) => None,
        (WrapperKind::DataParallel, _) => Some(format!("data parallel{norms}")),
        (WrapperKind::Ddp, Reduction::Reproducible { shards }) => {
            Some(format!("reproducible: {shards} shards"))
        }
        (WrapperKind::Ddp, Reduction::Buckets { algorithm, overlap, .. }) => {
            let when = if *overlap { "during" } else { "after" };
            Some(format!("ddp: buckets {when} backward ({algorithm}){norms}"))
        }
    };
    let slowness = flags.reduction.slow_link().filter(|_| run.main);
    let slow = slowness.map(|it| format!("link slowed down to {} MB/s", it.megabytes()));
    let breakage = flags.breakage.filter(|_| run.main);
    let broken = breakage.map(|bug| format!("broken on purpose: {}", name_of(&bug)));
    let tested = (flags.test_norm == TestNorm::Batch)
        .then(|| "tested by each batch's own statistics".to_owned());
    let method = [wrapper, slow, broken, tested].into_iter().flatten().join(", ");
    Some(method).filter(|method| !method.is_empty())
}

/// Prints the results of the runs, and writes the files that show all of them.
pub(crate) fn report(
    runs: &[Finished],
    prepared: &Prepared,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    if prepared.flags.compare.is_some() {
        compare(runs, prepared.flags.test_norm, outputs)?;
    } else if !runs.is_empty() {
        outputs.print_sparklines()?;
        line("")?;
        runs.iter().try_for_each(|run| line(&run.summary))?;
        if let [one, .., several] = runs {
            let ratio = one.summary.seconds_per_epoch / several.summary.seconds_per_epoch;
            line(format_args!("speed-up: {ratio:.2}× over [{}]", one.summary.devices.join(", ")))?;
        }
        for Finished { summary, replicas, .. } in runs.iter().filter(|run| run.replicas.len() > 1) {
            line(format_args!("{}: {}", summary.run, verdict(replicas)))?;
        }
    }
    Ok(outputs.write(&prepared.headline())?)
}

/// One combination, and its accuracy with each seed.
#[derive(Debug, Serialize)]
struct Row {
    devices: usize,
    batch_norm: &'static str,
    batch_size: usize,
    learning_rate: f64,
    test_norm: String,
    accuracies: Vec<f64>,
}

/// Prints the table of all combinations, and writes it to the metrics.
fn compare(runs: &[Finished], test_norm: TestNorm, outputs: &mut Outputs) -> anyhow::Result<()> {
    let combination = |Finished { run, .. }: &&Finished| {
        (run.world_size, run.batch_norm(), run.options.batch_size)
    };
    let finished = runs.iter().filter(|run| !run.summary.interrupted);
    let rows = finished.clone().unique_by(combination).map(|first| {
        let (devices, batch_norm, batch_size) = combination(&first);
        let of_row = finished.clone().filter(|run| combination(run) == combination(&first));
        let accuracies = of_row.map(|run| run.summary.test_accuracy).collect();
        let (learning_rate, test_norm) = (first.run.options.learning_rate, name_of(&test_norm));
        Row { devices, batch_norm, batch_size, learning_rate, test_norm, accuracies }
    });
    // A standard deviation needs two accuracies. After an interrupt or a failure, a row may have fewer.
    let rows: Vec<Row> = rows.filter(|row| row.accuracies.len() > 1).collect();
    if rows.is_empty() {
        return Ok(());
    }
    if test_norm == TestNorm::Batch {
        line("\ntest images normalised by the statistics of their own batches:")?;
    }
    line("\ndevices  batch norm    batch   rate   test acc, mean ± spread  (each seed)")?;
    for row in &rows {
        let Row { devices, batch_norm, batch_size, learning_rate, accuracies, .. } = row;
        let seeds = accuracies.len() as f64;
        let mean = accuracies.iter().sum::<f64>() / seeds;
        let squares: f64 = accuracies.iter().map(|accuracy| (accuracy - mean).powi(2)).sum();
        let deviation = (squares / (seeds - 1.0)).sqrt();
        line(format_args!(
            "{devices:>7}  {batch_norm:<13}{batch_size:>6}{:>7}   {mean:.3} ± {deviation:.3}  ({:.3})",
            rounded(*learning_rate),
            accuracies.iter().format(" ")
        ))?;
        if let Some(metrics) = outputs.metrics() {
            metrics.write("accuracy", row)?;
        }
    }
    Ok(())
}
