//! `--compare N`: why are several devices less accurate than one?
//!
//! Two things change at once when K devices take K times the batch and the rate: steps are fewer, and longer. (Whose images
//! a local batch norm sees changes only where the batch stays as it was.) And accuracy differs from seed to seed anyway. So
//! each is changed by itself, with several seeds. Another is what test images are normalised by, after few and long
//! steps: `--test-norm` changes that.

use std::fmt;

use concise_wrapper::launch::Launch;
use harness::cli::name_of;
use harness::interrupt;
use harness::records::TrainOptions;
use harness::report::line;
use harness::report::outputs::Outputs;
use serde::Serialize;

use crate::arguments::{Norm, Planned, Prepared, Scale, TestNorm};
use crate::runs::Run;

/// One combination, and the accuracies of all seeds.
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
    fn new(planned: &Planned, test_norm: TestNorm) -> Self {
        let TrainOptions { batch_size, learning_rate, .. } = planned.options;
        let devices = planned.plan.len();
        let batch_norm = match planned.norm {
            _ if devices == 1 => "of the batch",
            Norm::Local => "local",
            Norm::Sync => "synchronised",
        };
        let (test_norm, accuracies) = (name_of(&test_norm), Vec::new());
        Self { devices, batch_norm, batch_size, learning_rate, test_norm, accuracies }
    }

    fn mean(&self) -> f64 {
        self.accuracies.iter().sum::<f64>() / self.accuracies.len() as f64
    }

    /// The standard deviation of the accuracies, as an estimate from so few.
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
        write!(
            f,
            "{devices:>7}  {batch_norm:<13}{batch_size:>6}{learning_rate:>7}   {mean:.3} ± {spread:.3}  ("
        )?;
        for (index, accuracy) in accuracies.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{accuracy:.3}")?;
        }
        write!(f, ")")
    }
}

/// Trains all combinations with seeds 1 to `seeds`, and prints a table: where one of them fails, of those before it.
pub(crate) fn compare(
    prepared: &mut Prepared,
    seeds: u32,
    launch: &Launch,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let trained = train(prepared, seeds, launch, outputs, &mut rows);
    let told = tell(rows, prepared.test_norm, outputs);
    trained.and(told)
}

/// Trains all combinations, and adds what each comes to to its row.
fn train(
    prepared: &mut Prepared,
    seeds: u32,
    launch: &Launch,
    outputs: &mut Outputs,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    for seed in 1..=seeds {
        prepared.setup.options.seed = seed.into();
        let mut planned = vec![prepared.on_one_device()?];
        for scale in [Scale::None, Scale::Linear] {
            for norm in [Norm::Local, Norm::Sync] {
                planned.push(prepared.on_several(scale, norm));
            }
        }
        if rows.is_empty() {
            *rows = planned.iter().map(|planned| Row::new(planned, prepared.test_norm)).collect();
        }
        for (row, planned) in rows.iter_mut().zip(&planned) {
            line(format_args!("\nseed {seed}, batch norm {}: {planned}", row.batch_norm))?;
            let run = Run::train(planned, prepared, launch, outputs)?;
            if interrupt::requested() {
                return Ok(());
            }
            row.accuracies.push(run.summary.test_accuracy);
        }
    }
    Ok(())
}

/// Prints the table, and writes it to the metrics.
fn tell(mut rows: Vec<Row>, test_norm: TestNorm, outputs: &mut Outputs) -> anyhow::Result<()> {
    // After an interrupt or a failure some rows may have too few accuracies to have a spread.
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
