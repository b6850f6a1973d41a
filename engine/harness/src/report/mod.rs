//! The reports of a run: progress, a line per epoch, and files with metrics, a plot, a trace.

pub mod file;
mod format;
mod layout;
pub mod outputs;
mod plot;
mod progress;
pub mod summary;
pub mod timeline;
pub mod trace;

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use file::remove_partial_files;
pub use format::{accuracy, counted, joined, listed, number, seconds, shown_rows, thousands};
pub use layout::{Table, columns, paragraph, terminal_columns, wrapped};
pub use progress::{Report, progress_bar};

use crate::interrupt;

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

/// Prints a line on standard output. (`println!` panics.) Fails with the system's error, or with [`StdoutClosed`] when nobody reads
/// the output. That is no error after Ctrl-C, which may have ended the reader, too, and after [`files_are_wanted`].
pub fn line(text: impl std::fmt::Display) -> io::Result<()> {
    let goes_on = || interrupt::requested() || FILES_ARE_WANTED.load(Ordering::Relaxed);
    writeln!(io::stdout().lock(), "{text}").or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe if goes_on() => Ok(()),
        kind @ io::ErrorKind::BrokenPipe => Err(io::Error::new(kind, StdoutClosed)),
        kind => Err(io::Error::new(kind, format!("standard output: {error}"))),
    })
}
