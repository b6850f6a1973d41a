//! The command line of all programs: flags, checks, error messages, exit codes.
//! A mistake in the flags is one line on standard error, with exit code 2. Any other failure has exit code 1 and one
//! line. A run that Ctrl-C ends early has exit code 130 (`SIGTERM`: 143). A program checks everything before it writes.

mod files;
mod parse;
mod process;

pub use crate::machine::DATA_FOLDER;
pub use files::{Format, JSON_LINES, ReportArguments, SVG, metrics, writable};
pub use parse::{arguments, each_once, help_of, name_of, number, parse, whole};
pub use process::{
    DATA_MIRRORS, ErrorReport, ReportedElsewhere, UsageError, before_a_run, conclude, end_process,
    give_up, prepare, report_error,
};
