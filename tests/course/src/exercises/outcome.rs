//! The outcome of a check.

use std::time::Duration;

use harness::report::counted;

use super::program::{Ended, Failure, Passed, Report};
use crate::process::How;

#[derive(Clone, Debug)]
pub enum Outcome {
    Passed(Vec<Passed>),
    /// The laws that the answer keeps, and the laws that the answer breaks.
    Failed(Vec<Passed>, Vec<Failure>),
    /// The compiler has reported mistakes in the answer on standard error.
    DoesNotCompile {
        /// Whether the check cannot call the answer.
        signature: bool,
    },
    /// cargo failed: the last lines of its output, or nothing if the terminal shows them.
    CargoFailed(String),
    /// The process ended before the check.
    CutShort {
        how: How,
        limit: Duration,
        /// The law that was being checked.
        during: Option<String>,
        /// The output of the answer since that law began.
        said: String,
    },
    /// By Ctrl-C, or because another answer was saved.
    Interrupted,
}

impl Outcome {
    /// Returns the outcome of a check. A check without laws does not pass.
    pub fn of(Ended { how, report }: Ended, limit: Duration) -> Self {
        let Report { passed, failures, running, is_whole, printed } = report;
        match how {
            How::Interrupted => Self::Interrupted,
            How::Alone(_) if is_whole && !failures.is_empty() => Self::Failed(passed, failures),
            How::Alone(status) if is_whole && status.success() && !passed.is_empty() => {
                Self::Passed(passed)
            }
            how => Self::CutShort { how, limit, during: running, said: printed },
        }
    }

    /// The outcome in a few words.
    pub fn verdict(&self) -> String {
        match self {
            Self::Passed(_) => "passes".to_owned(),
            Self::Failed(passed, failures) => {
                let fail = if failures.len() == 1 { "fails" } else { "fail" };
                let all = counted(passed.len() + failures.len(), "check");
                format!("{} of {all} {fail}", failures.len())
            }
            Self::DoesNotCompile { .. } => "it does not compile".to_owned(),
            Self::CargoFailed(_) => "cargo failed".to_owned(),
            Self::CutShort { how, limit, during, .. } => {
                let during = during.as_ref().map_or_else(String::new, |law| format!(" in {law}"));
                match how {
                    How::Alone(status) if status.code().is_some() => {
                        format!("the answer left the check{during} before it was done ({status})")
                    }
                    How::Alone(status) => {
                        format!("the check was ended by a crash{during} ({status})")
                    }
                    How::TooMuch(excess) => format!("the check {excess}{during}"),
                    _ => format!("the check did not end within {} s{during}", limit.as_secs()),
                }
            }
            Self::Interrupted => "the check was interrupted".to_owned(),
        }
    }
}
