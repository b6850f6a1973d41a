//! The outcome of a check.

use std::process::ExitStatus;
use std::time::Duration;

use harness::report::counted;

use super::program::{Ended, Failure, Passed};
use crate::process::{Excess, How};

#[derive(Clone, Debug)]
pub enum Outcome {
    Passed(Vec<Passed>),
    /// The laws that the answer keeps, and the laws that the answer breaks.
    Failed(Vec<Passed>, Vec<Failure>),
    DoesNotCompile {
        signature: bool,
    },
    /// cargo failed: the last lines of its output, or nothing if the terminal shows them.
    CargoFailed(String),
    /// The process ended before the check.
    CutShort {
        end: End,
        /// The law that was being checked.
        during: Option<String>,
        /// The output of the answer since that law began.
        said: String,
    },
    /// By Ctrl-C, or because another answer was saved.
    Interrupted,
}

/// How an incomplete check ended.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// By a crash, or because the answer left the process.
    Alone(ExitStatus),
    OutOfTime(Duration),
    TooMuch(Excess),
}

impl Outcome {
    /// Returns the outcome of a check. A check without laws does not pass.
    pub fn of(Ended { how, report }: Ended, limit: Duration) -> Self {
        let end = match how {
            How::Interrupted => return Self::Interrupted,
            How::Alone(_) if report.is_whole && !report.failures.is_empty() => {
                return Self::Failed(report.passed, report.failures);
            }
            How::Alone(status)
                if report.is_whole && status.success() && !report.passed.is_empty() =>
            {
                return Self::Passed(report.passed);
            }
            How::Alone(status) => End::Alone(status),
            How::OutOfTime => End::OutOfTime(limit),
            How::TooMuch(excess) => End::TooMuch(excess),
        };
        Self::CutShort { end, during: report.running, said: report.printed }
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
            Self::CutShort { end, during, .. } => {
                let during = during.as_ref().map_or_else(String::new, |law| format!(" in {law}"));
                match end {
                    End::Alone(status) if status.code().is_some() => {
                        format!("the answer left the check{during} before it was done ({status})")
                    }
                    End::Alone(status) => {
                        format!("the check was ended by a crash{during} ({status})")
                    }
                    End::OutOfTime(limit) => {
                        format!("the check did not end within {} s{during}", limit.as_secs())
                    }
                    End::TooMuch(excess) => format!("the check {excess}{during}"),
                }
            }
            Self::Interrupted => "the check was interrupted".to_owned(),
        }
    }
}
