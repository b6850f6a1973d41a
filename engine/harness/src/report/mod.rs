//! What a run tells: progress while it goes, a line per epoch, and in files metrics, a plot, a trace.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `progress`, `sparklines` | a terminal: how far an epoch is, accuracy by epoch |
//! | [`summary`] | the end of a run |
//! | [`outputs`] | the files of a run, all together |
//! | [`metrics`], `plot`, `timeline`, [`trace`] | each of them |
//! | [`lanes`], `colours` | pictures of who did what when |
//! | [`mod@file`] | files that are never half-written, and special files |
//! | `format` | numbers as text |

mod colours;
pub mod file;
mod format;
pub mod lanes;
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

    /// A step is done; `sums` and `elapsed` count from the beginning of the epoch.
    pub fn batches_done(&mut self, batches: usize, sums: &BatchSums, elapsed: Duration) {
        if let Some(progress) = &self.progress {
            progress.batches_done(batches, sums, elapsed);
        }
    }

    /// An epoch has ended.
    pub fn epoch_ends(&mut self, record: &EpochRecord) -> io::Result<()> {
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

/// Nobody reads standard output any more, for example because `| head` has seen enough.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("nobody reads standard output any more")]
pub struct NobodyReads;

/// Whether this process is to write files, whoever reads its standard output.
static FILES_ARE_WANTED: AtomicBool = AtomicBool::new(false);

/// From now on the run goes on when nobody reads standard output any more: it has files to write.
pub fn files_are_wanted() {
    FILES_ARE_WANTED.store(true, Ordering::Relaxed);
}

/// Prints a line on standard output.
///
/// # Errors
///
/// [`NobodyReads`] in an [`io::Error`]; or what else the system says. (`println!` panics.) A reader that has left is no
/// error where files are still to be written: after Ctrl-C, as the signal ended it as well, and where somebody has
/// [asked for files](files_are_wanted).
pub fn line(text: impl std::fmt::Display) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            match interrupt::requested() || FILES_ARE_WANTED.load(Ordering::Relaxed) {
                true => Ok(()),
                false => Err(io::Error::new(error.kind(), NobodyReads)),
            }
        }
        Err(error) => Err(io::Error::new(error.kind(), format!("standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}
