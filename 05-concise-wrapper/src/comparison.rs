//! `--compare N`: the reasons why several devices are less accurate than one.
//!
//! With K devices, K times the batch and K times the rate, two things change at once: there are fewer and longer steps, and a
//! local batch norm sees other images. Accuracy also differs from seed to seed. So each of the two changes by itself, with
//! several seeds. A third cause is the statistics that normalise test images after few and long steps: `--test-norm`
//! changes these.

use std::fmt;

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

impl Row {
    /// The row of a run, without its accuracy.
    fn new(Run { planned, .. }: &Run, test_norm: TestNorm) -> Self {
        Self {
            devices: planned.world_size,
            batch_norm: planned.batch_norm(),
            batch_size: planned.options.batch_size,
            learning_rate: planned.options.learning_rate,
            test_norm: name_of(&test_norm),
            accuracies: Vec::new(),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        let key = |row: &Self| (row.devices, row.batch_norm, row.batch_size);
        key(self) == key(other)
    }

    fn mean(&self) -> f64 {
        self.accuracies.iter().sum::<f64>() / self.accuracies.len() as f64
    }

    /// The standard deviation of all seeds, estimated from these.
    fn spread(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.accuracies.iter().map(|a| (a - mean).powi(2)).sum();
        (squares / (self.accuracies.len() as f64 - 1.0)).sqrt()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devices, batch_norm, batch_size, learning_rate, accuracies, .. } = self;
        let (mean, spread) = (self.mean(), self.spread());
        let each: Vec<_> = accuracies.iter().map(|accuracy| format!("{accuracy:.3}")).collect();
        write!(
            f,
            "{devices:>7}  {batch_norm:<13}{batch_size:>6}{learning_rate:>7}   {mean:.3} ± {spread:.3}  ({})",
            each.join(" ")
        )
    }
}

/// Prints the table of all combinations, and writes it to the metrics.
pub(crate) fn report(
    runs: &[Run],
    test_norm: TestNorm,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    let mut rows: Vec<Row> = Vec::new();
    for run in runs.iter().filter(|run| !run.summary.interrupted) {
        let new = Row::new(run, test_norm);
        let known = rows.iter().position(|row| row.is_like(&new));
        let row = known.unwrap_or(rows.len());
        if known.is_none() {
            rows.push(new);
        }
        rows[row].accuracies.push(run.summary.test_accuracy);
    }
    // After an interrupt or a failure, a row may have too few accuracies for a spread.
    rows.retain(|row| row.accuracies.len() > 1);
    if rows.is_empty() {
        return Ok(());
    }
    if test_norm == TestNorm::Batch {
        line("\ntest images normalised by the statistics of their own batches:")?;
    }
    line("\ndevices  batch norm    batch   rate   test acc, mean ± spread  (each seed)")?;
    for row in &rows {
        line(row)?;
        if let Some(metrics) = outputs.metrics() {
            metrics.write("accuracy", row)?;
        }
    }
    Ok(())
}
