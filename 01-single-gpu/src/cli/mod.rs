//! What the binaries of all stages share: flags, checks at the edge, exit codes.
//!
//! A mistake in the flags is one line on standard error and exit code 2. Anything else that goes wrong
//! is one line and exit code 1; a run that Ctrl-C ended early tells its results and has
//! exit code 130 (`SIGTERM`: 143). Nothing is written before everything has been checked.

mod data;
mod devices;
mod ending;
mod meaning;
mod names;
mod parse;
mod process;
mod reports;
mod training;

pub use data::DataArguments;
pub use devices::{DeviceArguments, SeveralDevices};
pub use ending::{Complaint, ToldElsewhere, UsageError, conclude, give_up, main, tell};
pub use names::{each_once, name_of};
pub use parse::parse;
pub use process::prepare;
pub use reports::{ReportArguments, metrics, writable};
pub use training::{ElementType, TrainArguments, TrainSetup};
