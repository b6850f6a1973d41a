//! The reporter of one run: a progress bar on a terminal, a line per epoch, and the metrics file.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::file::{LazyFile, Line};
use super::{columns, error_line, line, wrapped};
use crate::records::{BatchSums, EpochRecord, Unit, bits_per_byte};

/// Makes a progress bar on standard error. It is hidden if standard error is not a terminal.
pub fn progress_bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    // Ten times a second, a redraw costs nothing.
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10))
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The reporter of one run. Of several devices one reports, and the others are [silent](Report::silent).
#[derive(Debug)]
pub struct Report<'a> {
    run: String,
    unit: Unit,
    /// `None` for a silent reporter.
    bar: Option<ProgressBar>,
    metrics: Option<&'a mut LazyFile>,
    epochs: usize,
}

impl<'a> Report<'a> {
    /// Makes a reporter that prints on the terminal and writes to `metrics`, if there are any.
    pub(super) fn new(run: &str, unit: Unit, metrics: Option<&'a mut LazyFile>) -> Self {
        // The widest texts around the bar: `epoch 10/10`, `123/235`, and the message.
        const AROUND: usize = 58;
        let template = match columns().saturating_sub(AROUND) {
            room @ 5.. => format!("{{prefix}} {{bar:{room}}} {{pos}}/{{len}}  {{msg}}"),
            _ => "{prefix} {pos}/{len}  {msg}".to_owned(),
        };
        Self { run: run.to_owned(), unit, bar: Some(progress_bar(&template)), metrics, epochs: 0 }
    }

    /// Makes a reporter that prints and writes nothing.
    pub fn silent() -> Self {
        Self { run: String::new(), unit: Unit::Images, bar: None, metrics: None, epochs: 0 }
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
            bar.suspend(|| error_line(wrapped(&format!("note: {text}"), columns())));
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
            // Creates or empties the file.
            metrics.append(b"")?;
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
                "loss {:.4}  acc {:.3}  {:.0} {}",
                sums.mean_loss(),
                sums.accuracy(),
                sums.samples as f64 / elapsed.as_secs_f64(),
                self.unit.names().1
            ));
        }
        bar.set_position(batches as u64);
    }

    /// Reports the end of an epoch. Fails when the metrics file cannot be written, or standard output has no reader.
    pub fn epoch_ends(&mut self, record: &EpochRecord) -> io::Result<()> {
        // The file first: printing fails when standard output has no reader.
        if let Some(metrics) = &mut self.metrics {
            let run = Some(self.run.as_str());
            metrics.write_line(&Line { kind: "epoch", run, content: record })?;
        }
        let Some(bar) = &self.bar else { return Ok(()) };
        let text = epoch_line(record, self.unit, self.epochs, columns());
        // Without the bar, which would be in the same line.
        bar.suspend(|| line(text))
    }
}

/// The line of an epoch, in at most `most` columns if it fits. Without room the line leaves out the speed first, and the
/// accuracy on the training images second. In place of the latter, the line of a text has the bits per byte of the test.
fn epoch_line(record: &EpochRecord, unit: Unit, epochs: usize, most: usize) -> String {
    let EpochRecord { epoch, part, train_loss, train_accuracy, test_accuracy, .. } = record;
    let width = epochs.to_string().len();
    let part = if *part < 1.0 { format!(" ({:.0} %)", 100.0 * part) } else { String::new() };
    let (test, seconds) = (super::accuracy(*test_accuracy), super::seconds(record.seconds));
    let start = format!("  epoch {epoch:>width$}/{epochs}{part}  loss {train_loss:.4}");
    let train = match unit {
        Unit::Images => format!("  train acc {train_accuracy:.3}"),
        Unit::Tokens => format!("  bits/byte {:.3}", bits_per_byte(record.test_loss)),
    };
    let end = format!("  test acc {test}  {seconds} s");
    let speed = format!("  {:.0} {}", record.images_per_second, unit.names().1);
    let longer = [[&*start, &train, &end, &speed].concat(), [&*start, &train, &end].concat()];
    let fitting = longer.into_iter().find(|line| line.chars().count() <= most);
    fitting.unwrap_or(start + &end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_fits_into_its_columns() {
        let record = EpochRecord {
            epoch: 3,
            part: 1.0,
            train_loss: 0.74881,
            train_accuracy: 0.7134,
            test_accuracy: 0.794,
            seconds: 34.66,
            images_per_second: 13_179.4,
            ..EpochRecord::default()
        };
        let whole =
            "  epoch  3/10  loss 0.7488  train acc 0.713  test acc 0.794  34.7 s  13179 img/s";
        let slower = "  epoch  3/10  loss 0.7488  train acc 0.713  test acc 0.794  34.7 s";
        let shortest = "  epoch  3/10  loss 0.7488  test acc 0.794  34.7 s";
        for (most, line) in [(100, whole), (80, whole), (79, slower), (60, shortest), (9, shortest)]
        {
            assert_eq!(epoch_line(&record, Unit::Images, 10, most), line);
        }
        let cut = epoch_line(&EpochRecord { part: 0.4, ..record }, Unit::Images, 10, 80);
        assert!(cut.starts_with("  epoch  3/10 (40 %)  loss 0.7488  train acc"), "{cut}");
        let text = EpochRecord { test_loss: 2.0 * 2f64.ln(), ..record };
        assert_eq!(
            epoch_line(&text, Unit::Tokens, 10, 80),
            "  epoch  3/10  loss 0.7488  bits/byte 2.000  test acc 0.794  34.7 s  13179 tok/s"
        );
    }
}
