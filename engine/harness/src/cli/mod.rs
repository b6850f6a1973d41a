//! What the binaries of all stages share: flags, checks at the edge, exit codes.
//!
//! A mistake in the flags is one line on standard error and exit code 2. Anything else that goes wrong
//! is one line and exit code 1; a run that Ctrl-C ended early tells its results and has
//! exit code 130 (`SIGTERM`: 143). Nothing is written before everything has been checked.

mod error_hints;
mod exit;
mod files;
mod names;
mod parse;
mod process;

pub use exit::{Complaint, ToldElsewhere, UsageError, conclude, give_up, main, tell};
pub use files::{ReportArguments, metrics, writable};
pub use names::{each_once, name_of};
pub use parse::parse;
pub use process::{DATA_FOLDER, DATA_MIRRORS, prepare};
