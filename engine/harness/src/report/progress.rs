//! A progress bar on a terminal, and plain lines elsewhere.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::line;
use crate::records::{BatchSums, EpochRecord};

/// The highest number of redraws per second.
const REDRAWS: u8 = 10;

#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    epochs: usize,
}

impl Progress {
    pub(super) fn new() -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(REDRAWS)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, epochs: 0 }
    }

    pub(super) fn note(&self, text: impl Display) {
        // The run goes on when standard error has no reader.
        let _ = self.bar.suspend(|| writeln!(io::stderr(), "{text}"));
    }

    pub(super) fn epoch_begins(
        &mut self,
        epoch: usize,
        epochs: usize,
        batches: usize,
        done: usize,
    ) {
        self.epochs = epochs;
        self.bar.reset();
        self.bar.set_length(batches as u64);
        self.bar.set_position(done as u64);
        self.bar.set_prefix(format!("epoch {epoch}/{epochs}"));
        self.bar.set_message("");
    }

    pub(super) fn batches_done(&self, batches: usize, sums: &BatchSums, elapsed: Duration) {
        if !self.bar.is_hidden() {
            self.bar.set_message(format!(
                "loss {:.4}  acc {:.3}  {:.0} images/s",
                sums.mean_loss(),
                sums.accuracy(),
                sums.samples as f64 / elapsed.as_secs_f64()
            ));
        }
        self.bar.set_position(batches as u64);
    }

    pub(super) fn epoch_ends(&mut self, record: &EpochRecord) -> io::Result<()> {
        let EpochRecord { epoch, train_loss, train_accuracy, test_accuracy, seconds, .. } = record;
        let width = self.epochs.to_string().len();
        let part = match record.part {
            part if part < 1.0 => format!(" ({:.0} %)", 100.0 * part),
            _ => String::new(),
        };
        let text = format!(
            "  epoch {epoch:>width$}/{}{part}  loss {train_loss:.4}  train acc {train_accuracy:.3}  \
             test acc {test_accuracy:.3}  {} s  {:.0} images/s",
            self.epochs,
            super::seconds(*seconds),
            record.images_per_second
        );
        // Without the bar, which would be in the same line.
        self.bar.suspend(|| line(text))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
