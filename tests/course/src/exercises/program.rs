//! Runs a program that checks an answer, in a process of its own, and reads its report.
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
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::process::{Group, How, Printed};

/// Begins each line of the report.
const MARK: char = '\u{1e}';

#[derive(Clone, Debug)]
pub struct Ended {
    pub how: How,
    pub report: Report,
}

/// The findings of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub passed: Vec<Passed>,
    pub failures: Vec<Failure>,
    /// The law that had begun and not ended.
    pub running: Option<String>,
    /// Whether the check is complete.
    pub is_whole: bool,
    /// The output of the answer after the last line of the report.
    pub printed: String,
}

/// A law that an answer keeps.
#[derive(Clone, Debug)]
pub struct Passed {
    pub law: String,
    pub printed: String,
}

/// A law that an answer breaks.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct Failure {
    pub law: String,
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
    state: Option<State>,
    ended: Option<IgnoredAny>,
    #[serde(flatten)]
    law: Failure,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Begun,
    Passed,
    Failed,
}

/// Runs a program that checks an answer, in the package's folder, while its result is `wanted`. Ends a program that prints
/// without end or takes ever more memory. Fails when the program cannot be started.
pub fn run(
    executable: &Path,
    folder: &Path,
    arguments: &[&str],
    limit: Duration,
    wanted: &dyn Fn() -> bool,
) -> anyhow::Result<Ended> {
    // One file for both streams keeps the order of their lines.
    let output = Printed::nothing()?;
    let mut command = Command::new(executable);
    command.args(arguments).current_dir(folder);
    // A backtrace of a check does not help with the answer.
    command.env("RUST_BACKTRACE", "0");
    command.stdout(output.stream()?).stderr(output.stream()?);
    let group = Group::start(&mut command)
        .with_context(|| format!("{} cannot be started", executable.display()))?;
    let how = group.wait_if_modest(limit, &output, wanted)?;
    Ok(Ended { how, report: Report::read(&output.text()?) })
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

    fn add(&mut self, Record { state, ended, law }: Record) {
        let printed = std::mem::take(&mut self.printed);
        self.running = None;
        match state {
            Some(State::Begun) => self.running = Some(law.law),
            Some(State::Passed) => self.passed.push(Passed { law: law.law, printed }),
            Some(State::Failed) => self.failures.push(Failure { printed, ..law }),
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
