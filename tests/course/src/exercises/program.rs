//! Runs a program that checks an answer, in its own process, and reads its report: the outcome of the check.
//!
//! The report goes to standard output, among the lines that the answer prints. Each line of the report is the character
//! U+001E and a JSON object:
//!
//! ```text
//! {"law":"even_chunks","state":"begun"}
//! {"law":"even_chunks","state":"passed"}
//! {"law":"any_shape","state":"failed","message":"…","place":"tests/exercises/ch02_ring.rs:12:5","todo":false}
//! {"ended":{"passed":1,"failed":1}}
//! ```

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use harness::report::counted;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::process::{Group, How, Printed};

/// Begins each line of the report.
const MARK: char = '\u{1e}';

/// The outcome of a check.
#[derive(Clone, Debug)]
pub enum Outcome {
    Passed(Vec<Checked>),
    /// The answer passes, and its check is not the original, so the pass does not count.
    OfAnEditedCheck,
    /// The laws that the answer keeps, and the laws that the answer breaks.
    Failed(Vec<Checked>, Vec<Checked>),
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

/// The findings of a check.
#[derive(Debug, Default)]
struct Report {
    passed: Vec<Checked>,
    failures: Vec<Checked>,
    /// The law that had begun and not ended.
    running: Option<String>,
    /// Whether the check is complete.
    is_whole: bool,
    /// The output of the answer after the last line of the report.
    printed: String,
}

/// A law that was checked.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct Checked {
    pub law: String,
    /// Of a law that the answer breaks. Empty for a law that the answer keeps.
    pub message: String,
    /// The place of a panic in the answer.
    pub place: Option<String>,
    /// Whether the answer reached a `todo!`.
    pub todo: bool,
    /// The output of the answer while the law was checked.
    pub printed: String,
}

/// A line of the report: about a law, or the end.
#[derive(Deserialize)]
struct Record {
    /// `begun`, `passed` or `failed`.
    state: Option<String>,
    ended: Option<IgnoredAny>,
    #[serde(flatten)]
    law: Checked,
}

/// Runs a program that checks an answer, in the package's folder, while its result is `wanted`. Ends a program that prints
/// without end or takes ever more memory. Fails when the program cannot be started.
pub fn run(
    executable: &Path,
    folder: &Path,
    arguments: &[&str],
    limit: Duration,
    wanted: &dyn Fn() -> bool,
) -> anyhow::Result<Outcome> {
    // One file for both streams keeps the order of their lines.
    let output = Printed::nothing()?;
    let mut command = Command::new(executable);
    command.args(arguments).current_dir(folder);
    // A backtrace of a check does not help with the answer.
    command.env("RUST_BACKTRACE", "0");
    command.stdout(output.stream()?).stderr(output.stream()?);
    let group = Group::start(&mut command)
        .with_context(|| format!("{} cannot be started", executable.display()))?;
    let how = group.wait_if_modest(limit, Some(&output), wanted)?;
    Ok(Report::read(&output.text()?).outcome(how, limit))
}

impl Outcome {
    /// The outcome in a few words.
    pub fn verdict(&self) -> String {
        match self {
            Self::Passed(_) => "passes".to_owned(),
            Self::OfAnEditedCheck => "its check was edited, so the pass does not count".to_owned(),
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

impl Report {
    fn read(output: &str) -> Self {
        let mut report = Self::default();
        for line in output.split_inclusive('\n') {
            let record = line.split_once(MARK).and_then(|(before, record)| {
                // The answer may have printed text without a newline.
                Some((before, serde_json::from_str(record).ok()?))
            });
            match record {
                Some((before, record)) => {
                    report.printed.push_str(before);
                    report.add(record);
                }
                None => report.printed.push_str(line),
            }
        }
        report
    }

    /// The outcome of a check that has ended. A check without laws does not pass.
    fn outcome(self, how: How, limit: Duration) -> Outcome {
        let Self { passed, failures, running, is_whole, printed } = self;
        match how {
            How::Interrupted => Outcome::Interrupted,
            How::Alone(_) if is_whole && !failures.is_empty() => Outcome::Failed(passed, failures),
            How::Alone(status) if is_whole && status.success() && !passed.is_empty() => {
                Outcome::Passed(passed)
            }
            how => Outcome::CutShort { how, limit, during: running, said: printed },
        }
    }

    fn add(&mut self, Record { state, ended, law }: Record) {
        let printed = std::mem::take(&mut self.printed);
        self.running = None;
        match state.as_deref() {
            Some("begun") => self.running = Some(law.law),
            Some("passed") => self.passed.push(Checked { printed, ..law }),
            Some(_) => self.failures.push(Checked { printed, ..law }),
            None => self.is_whole |= ended.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\u{1e}{\"law\":\"a\",\"state\":\"begun\"}\nseen\n\u{1e}{\"law\":\"a\",\"state\":\"passed\"}\n\
        \u{1e}{\"law\":\"b\",\"state\":\"begun\"}\nno newline\u{1e}{\"law\":\"b\",\"state\":\"failed\",\
        \"message\":\"got 4\",\"place\":null,\"todo\":false}\n";

    #[test]
    fn an_answer_keeps_its_output_and_a_report_that_breaks_off_its_law() {
        let begun =
            format!("{OUTPUT}\u{1e}{{\"law\":\"c\",\"state\":\"begun\"}}\nlast\n\u{1e}{{\"la");
        let whole = format!("{OUTPUT}last\n\u{1e}{{\"ended\":{{\"passed\":1,\"failed\":1}}}}\n");
        for (output, is_whole, running) in [(whole, true, None), (begun, false, Some("c"))] {
            let report = Report::read(&output);
            assert_eq!((report.is_whole, report.running.as_deref()), (is_whole, running));
            let ([passed], [failure]) = (&report.passed[..], &report.failures[..]) else {
                panic!("{report:?}")
            };
            assert_eq!((&*passed.law, &*passed.printed), ("a", "seen\n"));
            assert_eq!((&*failure.message, &*failure.printed), ("got 4", "no newline"));
            assert_eq!(report.printed.starts_with("last\n"), !is_whole);
        }
    }
}
