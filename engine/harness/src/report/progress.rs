//! The reporter of one run: a progress bar on a terminal, a line per epoch, and the metrics file.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::line;
use super::metrics::Metrics;
use crate::records::{BatchSums, EpochRecord};

/// The highest number of redraws per second.
const REDRAWS: u8 = 10;

/// Makes a progress bar on standard error. It is hidden if standard error is not a terminal.
pub fn progress_bar(template: &str) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(REDRAWS);
    let style = ProgressStyle::with_template(template);
    ProgressBar::with_draw_target(None, target)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The reporter of one run. Of several devices one reports, and the others are [silent](Report::silent).
#[derive(Debug)]
pub struct Report<'a> {
    run: String,
    /// `None` for a silent reporter.
    bar: Option<ProgressBar>,
    metrics: Option<&'a mut Metrics>,
    epochs: usize,
}

impl<'a> Report<'a> {
    /// Makes a reporter that prints on the terminal and writes to `metrics`, if there are any.
    pub fn new(run: &str, metrics: Option<&'a mut Metrics>) -> Self {
        let bar = progress_bar("{prefix} {bar:30} {pos}/{len}  {msg}");
        Self { run: run.to_owned(), bar: Some(bar), metrics, epochs: 0 }
    }

    /// Makes a reporter that prints and writes nothing.
    pub fn silent() -> Self {
        Self { run: String::new(), bar: None, metrics: None, epochs: 0 }
    }

    /// The reporters of so many ranks: this one for the first, and silent ones for the others.
    pub fn of_ranks(self, ranks: usize) -> Vec<Self> {
        let mut reports = vec![self];
        reports.resize_with(ranks, Self::silent);
        reports
    }

    /// The run's name. A silent reporter has an empty name.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Prints a note on standard error, above the progress bar.
    pub fn note(&self, text: impl Display) {
        if let Some(bar) = &self.bar {
            // The run goes on when standard error has no reader.
            let _ = bar.suspend(|| writeln!(io::stderr(), "note: {text}"));
        }
    }

    /// Begins the report of an epoch of `batches` steps, of which `done` are done already.
    pub fn epoch_begins(
        &mut self,
        epoch: usize,
        epochs: usize,
        batches: usize,
        done: usize,
    ) -> io::Result<()> {
        if let Some(metrics) = &mut self.metrics {
            metrics.begin()?;
        }
        self.epochs = epochs;
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_length(batches as u64);
            bar.set_position(done as u64);
            bar.set_prefix(format!("epoch {epoch}/{epochs}"));
            bar.set_message("");
        }
        Ok(())
    }

    /// Reports a step. `sums` and `elapsed` count from the beginning of the epoch.
    pub fn batches_done(&mut self, batches: usize, sums: &BatchSums, elapsed: Duration) {
        let Some(bar) = &self.bar else { return };
        if !bar.is_hidden() {
            bar.set_message(format!(
                "loss {:.4}  acc {:.3}  {:.0} images/s",
                sums.mean_loss(),
                sums.accuracy(),
                sums.samples as f64 / elapsed.as_secs_f64()
            ));
        }
        bar.set_position(batches as u64);
    }

    /// Reports the end of an epoch. Fails when the metrics file cannot be written, or standard output has no reader.
    pub fn epoch_ends(&mut self, record: &EpochRecord) -> io::Result<()> {
        // The file first: printing fails when standard output has no reader.
        if let Some(metrics) = &mut self.metrics {
            metrics.epoch(&self.run, record)?;
        }
        let Some(bar) = &self.bar else { return Ok(()) };
        let EpochRecord { epoch, train_loss, train_accuracy, test_accuracy, seconds, .. } = record;
        let (epochs, width) = (self.epochs, self.epochs.to_string().len());
        let part = match record.part {
            part if part < 1.0 => format!(" ({:.0} %)", 100.0 * part),
            _ => String::new(),
        };
        let test = super::accuracy(*test_accuracy);
        let text = format!(
            "  epoch {epoch:>width$}/{epochs}{part}  loss {train_loss:.4}  train acc {train_accuracy:.3}  \
             test acc {test}  {} s  {:.0} images/s",
            super::seconds(*seconds),
            record.images_per_second
        );
        // Without the bar, which would be in the same line.
        bar.suspend(|| line(text))
    }
}
