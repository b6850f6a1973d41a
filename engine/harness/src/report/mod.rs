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

use std::fmt::Display;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use file::remove_partial_files;
pub use format::{accuracy, counted, joined, listed, number, seconds, shown_rows, thousands};
pub(crate) use layout::WIDEST;
pub use layout::{Table, columns, labelled, paragraph, terminal_columns, wrapped};
pub use progress::{Report, progress_bar};
use rustix::event::{PollFd, PollFlags, poll};

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
pub fn line(text: impl Display) -> io::Result<()> {
    let goes_on = || interrupt::requested() || FILES_ARE_WANTED.load(Ordering::Relaxed);
    let printed = Blocking(io::stdout().lock()).print(&format!("{text}\n"));
    printed.or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe if goes_on() => Ok(()),
        kind @ io::ErrorKind::BrokenPipe => Err(io::Error::new(kind, StdoutClosed)),
        kind => Err(io::Error::new(kind, format!("standard output: {error}"))),
    })
}

/// Prints a line on standard error, which may be closed. One call writes it, so no other process can print in between.
pub fn error_line(text: impl Display) {
    let _ = Blocking(io::stderr().lock()).print(&format!("{text}\n"));
}

/// An output that is written to as if it were blocking. Another process that shares a pipe or a terminal may have made it non-blocking
/// (`O_NONBLOCK`). A full pipe then refuses bytes, and each write waits until its reader has made room.
#[derive(Debug)]
pub(crate) struct Blocking<W>(pub(crate) W);

impl<W: io::Write + AsFd> Blocking<W> {
    fn print(&mut self, text: &str) -> io::Result<()> {
        self.write_all(text.as_bytes())?;
        self.flush()
    }

    /// Calls `work` until the output does not refuse it. `work` that is refused has written nothing, or counts its written bytes.
    fn when_ready<T>(&mut self, work: impl Fn(&mut W) -> io::Result<T>) -> io::Result<T> {
        loop {
            match work(&mut self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // A signal ends the wait early.
                    let _ = poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None);
                }
                done => return done,
            }
        }
    }
}

impl<W: io::Write + AsFd> io::Write for Blocking<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.when_ready(|output| output.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.when_ready(io::Write::flush)
    }
}
