//! The report of a program that checks an answer: lines of JSON, each behind the character U+001E.

use serde_json::Value;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Failure {
    pub(super) check: String,
    pub(super) message: String,
    pub(super) place: Option<String>,
    pub(super) todo: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) failed: usize,
}

fn records(output: &str) -> impl Iterator<Item = Value> {
    output.lines().filter_map(|line| serde_json::from_str(line.split_once('\u{1e}')?.1).ok())
}

fn text(record: &Value, key: &str) -> Option<String> {
    record[key].as_str().map(str::to_owned)
}

/// The laws that failed.
pub(super) fn failures(output: &str) -> Vec<Failure> {
    let failure = |record: Value| {
        (record["state"] == "failed").then(|| Failure {
            check: text(&record, "law").unwrap_or_default(),
            message: text(&record, "message").unwrap_or_default(),
            place: text(&record, "place"),
            todo: record["todo"] == true,
        })
    };
    records(output).filter_map(failure).collect()
}

/// How many laws passed and failed; none where the program ended before the last one did.
pub(super) fn counts(output: &str) -> Option<Counts> {
    let ended = records(output).find_map(|record| record.get("ended").cloned())?;
    let count = |key: &str| ended[key].as_u64().unwrap_or_default() as usize;
    Some(Counts { passed: count("passed"), failed: count("failed") })
}

/// The law that had begun last.
pub(super) fn running(output: &str) -> Option<String> {
    let last = records(output).last()?;
    (last["state"] == "begun").then(|| text(&last, "law"))?
}
