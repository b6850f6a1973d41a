//! The reports of a run: progress, a line per epoch, and files with metrics, a plot, a trace.
//!
//! | module | content |
//! | --- | --- |
//! | `progress`, `sparklines` | the terminal: progress within an epoch, accuracy by epoch |
//! | [`summary`] | the result of a run |
//! | [`outputs`] | all files of a run |
//! | [`metrics`], `plot`, `timeline`, [`trace`] | the single files |
//! | [`chart`], `colours` | pictures of the work of each rank over time |
//! | [`mod@file`] | files that are never half-written, and special files |
//! | `format` | numbers as text |

pub mod chart;
mod colours;
pub mod file;
mod format;
pub mod metrics;
pub mod outputs;
mod plot;
mod progress;
mod sparklines;
pub mod summary;
mod timeline;
pub mod trace;

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use file::remove_partial_files;
pub use format::{counted, seconds, thousands};
use metrics::Metrics;
use progress::Progress;

use crate::interrupt;
use crate::records::{BatchSums, EpochRecord};

/// The reporter of one run. If the run has several devices, one of them reports, and the others are
/// [silent](Report::silent).
#[derive(Debug)]
pub struct Report<'a> {
    run: String,
    progress: Option<Progress>,
    metrics: Option<&'a mut Metrics>,
}

impl<'a> Report<'a> {
    /// Makes a reporter that prints on the terminal and writes to `metrics`, if there are any.
    pub fn new(run: &str, metrics: Option<&'a mut Metrics>) -> Self {
        Self { run: run.to_owned(), progress: Some(Progress::new()), metrics }
    }

    /// Makes a reporter that prints and writes nothing.
    pub fn silent() -> Self {
        Self { run: String::new(), progress: None, metrics: None }
    }

    /// The run's name. A silent reporter has an empty name.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Prints a note on standard error, above the progress bar.
    pub fn note(&self, text: impl std::fmt::Display) {
        if let Some(progress) = &self.progress {
            progress.note(format_args!("note: {text}"));
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
        if let Some(progress) = &mut self.progress {
            progress.epoch_begins(epoch, epochs, batches, done);
        }
        Ok(())
    }

    /// Reports a step. `sums` and `elapsed` count from the beginning of the epoch.
    pub fn batches_done(&mut self, batches: usize, sums: &BatchSums, elapsed: Duration) {
        if let Some(progress) = &self.progress {
            progress.batches_done(batches, sums, elapsed);
        }
    }

    /// Reports the end of an epoch.
    pub fn epoch_ends(&mut self, record: &EpochRecord) -> io::Result<()> {
        // The file first: printing fails when standard output has no reader.
        if let Some(metrics) = &mut self.metrics {
            metrics.epoch(&self.run, record)?;
        }
        match &mut self.progress {
            Some(progress) => progress.epoch_ends(record),
            None => Ok(()),
        }
    }
}

/// The reader of standard output has closed it, for example `| head`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("nobody reads standard output any more")]
pub struct StdoutClosed;

/// Whether this process writes files, and so goes on when standard output has no reader.
static FILES_ARE_WANTED: AtomicBool = AtomicBool::new(false);

/// Makes the run go on when standard output has no reader, because the run has files to write.
pub fn files_are_wanted() {
    FILES_ARE_WANTED.store(true, Ordering::Relaxed);
}

/// Prints a line on standard output.
///
/// # Errors
///
/// [`StdoutClosed`] in an [`io::Error`] when standard output has no reader, or the system's error. (`println!` panics.) A
/// missing reader is no error when the run still has to write files: after Ctrl-C, which may have ended the reader, too,
/// and after [`files_are_wanted`].
pub fn line(text: impl std::fmt::Display) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            match interrupt::requested() || FILES_ARE_WANTED.load(Ordering::Relaxed) {
                true => Ok(()),
                false => Err(io::Error::new(error.kind(), StdoutClosed)),
            }
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}
