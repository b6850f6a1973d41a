//! `--compare N`: the reasons why several devices are less accurate than one.
//!
//! With K devices, K times the batch and K times the rate, two things change at once: there are fewer and longer steps, and a
//! local batch norm sees other images. Accuracy also differs from seed to seed. So each of the two changes by itself, with
//! several seeds. A third cause is the statistics that normalise test images after few and long steps: `--test-norm`
//! changes these.

use harness::cli::name_of;
use harness::report::line;
use harness::report::outputs::Outputs;
use serde::Serialize;

use crate::arguments::TestNorm;
use crate::runs::Run;

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
pub(crate) fn report(
    runs: &[Run],
    test_norm: TestNorm,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    let mut rows: Vec<Row> = Vec::new();
    for Run { planned, summary, .. } in runs.iter().filter(|run| !run.summary.interrupted) {
        let (devices, batch_size) = (planned.world_size, planned.options.batch_size);
        let (batch_norm, accuracy) = (planned.batch_norm(), summary.test_accuracy);
        let key = (devices, batch_norm, batch_size);
        let of_row = |row: &&mut Row| (row.devices, row.batch_norm, row.batch_size) == key;
        match rows.iter_mut().find(of_row) {
            Some(row) => row.accuracies.push(accuracy),
            None => rows.push(Row {
                devices,
                batch_norm,
                batch_size,
                learning_rate: planned.options.learning_rate,
                test_norm: name_of(&test_norm),
                accuracies: vec![accuracy],
            }),
        }
    }
    // A standard deviation needs two accuracies. After an interrupt or a failure, a row may have fewer.
    rows.retain(|row| row.accuracies.len() > 1);
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
        let each: Vec<_> = accuracies.iter().map(|accuracy| format!("{accuracy:.3}")).collect();
        let each = each.join(" ");
        line(format_args!(
            "{devices:>7}  {batch_norm:<13}{batch_size:>6}{learning_rate:>7}   {mean:.3} ± {deviation:.3}  ({each})"
        ))?;
        if let Some(metrics) = outputs.metrics() {
            metrics.write("accuracy", row)?;
        }
    }
    Ok(())
}
