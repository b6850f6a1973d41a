//! What a run tells: progress while it goes, a line per epoch, and in files metrics, a plot, a trace.

mod chart;
mod colours;
pub mod file;
pub mod lanes;
pub mod metrics;
pub mod outputs;
mod plot;
mod progress;
mod timeline;
pub mod trace;

use std::io::{self, Write as _};
use std::time::Duration;

use metrics::Metrics;
use progress::Progress;

use crate::interrupt;
use crate::train::{BatchSums, EpochRecord};

/// The reporter of one run. Of several devices, one reports; the others are [silent](Report::silent).
#[derive(Debug)]
pub struct Report<'a> {
    run: String,
    progress: Option<Progress>,
    metrics: Option<&'a mut Metrics>,
}

impl<'a> Report<'a> {
    /// Reports to the terminal and, if there are `metrics`, to their file, under the run's name.
    pub fn new(run: &str, metrics: Option<&'a mut Metrics>) -> Self {
        Self { run: run.to_owned(), progress: Some(Progress::new()), metrics }
    }

    /// Says nothing.
    pub fn silent() -> Self {
        Self { run: String::new(), progress: None, metrics: None }
    }

    /// The run's name; nothing where nothing is reported.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Says something on standard error, beside the progress.
    pub fn note(&self, text: impl std::fmt::Display) {
        if let Some(progress) = &self.progress {
            progress.note(format_args!("note: {text}"));
        }
    }

    /// An epoch of `batches` steps begins, or goes on after `done` of them.
    pub(crate) fn epoch_begins(
        &mut self,
        epoch: usize,
        epochs: usize,
        batches: usize,
        done: usize,
    ) {
        if let Some(progress) = &mut self.progress {
            progress.epoch_begins(epoch, epochs, batches, done);
        }
    }

    /// A step is done; `sums` and `elapsed` count from the beginning of the epoch.
    pub(crate) fn batch_done(&mut self, sums: &BatchSums, elapsed: Duration) {
        if let Some(progress) = &self.progress {
            progress.batch_done(sums, elapsed);
        }
    }

    /// An epoch has ended.
    pub(crate) fn epoch_ends(&mut self, record: &EpochRecord) -> io::Result<()> {
        // The file first: it is still wanted when nobody reads the terminal's lines any more.
        if let Some(metrics) = &mut self.metrics {
            metrics.epoch(&self.run, record)?;
        }
        match &mut self.progress {
            Some(progress) => progress.epoch_ends(record),
            None => Ok(()),
        }
    }
}

/// Prints a line on standard output.
///
/// # Errors
///
/// When nobody reads it any more, for example because `| head` has seen enough. (`println!` panics.) After
/// Ctrl-C that is none: it ended the reader of a pipe as well, and the run's files are still to be written.
pub fn line(text: impl std::fmt::Display) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe && interrupt::requested() => Ok(()),
        outcome => outcome,
    }
}

/// A number with its thousands set apart: `60,000`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut spaced = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.char_indices() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            spaced.push(',');
        }
        spaced.push(digit);
    }
    spaced
}

/// So many things: `1 core`, `2 cores`, `2 batches`, `2 processes`.
pub fn counted(number: usize, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if ["tch", "ss"].iter().any(|hiss| noun.ends_with(hiss)) => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// Seconds with as many digits as tell something: `12.3`, `0.17`, `0.0042`.
pub fn seconds(seconds: f64) -> String {
    let decimals = match seconds {
        s if s >= 1.0 => 1,
        s if s >= 0.1 => 2,
        s if s >= 0.01 => 3,
        _ => 4,
    };
    format!("{seconds:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::{counted, seconds, thousands};

    #[test]
    fn seconds_keep_two_digits() {
        let told = [12.34, 0.166, 0.0123, 0.00421].map(seconds);
        assert_eq!(told, ["12.3", "0.17", "0.012", "0.0042"]);
    }

    #[test]
    fn one_thing_is_told_from_several() {
        let cores = [0, 1, 2].map(|number| counted(number, "core"));
        assert_eq!(cores, ["0 cores", "1 core", "2 cores"]);
        let two = ["batch", "process", "epoch"].map(|noun| counted(2, noun));
        assert_eq!(two, ["2 batches", "2 processes", "2 epochs"]);
    }

    #[test]
    fn thousands_are_set_apart() {
        let spaced = [0, 7, 999, 1_000, 60_000, 1_234_567].map(thousands);
        assert_eq!(spaced, ["0", "7", "999", "1,000", "60,000", "1,234,567"]);
    }
}
