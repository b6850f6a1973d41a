//! The files that programs of the course write with `--metrics`, as the answer to an experiment names them.
//!
//! An experiment's answer has numbers, and the names of the files that the numbers come from. A check reads the files and
//! computes the numbers again.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Fewer words are no reason.
const WORDS: usize = 8;

/// A line of a metrics file.
#[derive(Clone, Debug)]
pub struct Line {
    /// The file, as messages name it.
    pub file: String,
    /// What the line is about: `epoch`, `summary`, …
    pub kind: String,
    value: Value,
}

/// The summary of a training.
#[derive(Clone, Debug, Deserialize)]
pub struct Summary {
    /// The name of the data.
    pub data: String,
    /// The numbers of training images and of test images.
    pub images: (usize, usize),
    /// The settings.
    pub options: Options,
    /// The names of the devices.
    pub devices: Vec<String>,
    /// How several devices shared the work.
    pub method: Option<String>,
    /// Whether the run was ended early.
    pub interrupted: bool,
    /// The accuracy on the test images after the last epoch, 0 to 1.
    pub test_accuracy: f64,
}

/// The settings of a training.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
pub struct Options {
    /// Passes over the training images.
    pub epochs: usize,
    /// Samples in a batch, over all devices.
    pub batch_size: usize,
    /// The learning rate.
    pub learning_rate: f64,
    /// The seed of the weights and of the shuffles.
    pub seed: u64,
}

/// Reads all lines of the files. A name is that of a file, or of a folder whose `.jsonl` files count; paths begin at the
/// course's folder.
/// Panics when there is no such file, and when a line is no line of metrics. The message names the file, and `program`, the
/// command that writes such files.
#[track_caller]
pub fn lines(names: &[&str], program: &str) -> Vec<Line> {
    let law = "an experiment is run first: its numbers come from the files that the program writes";
    assert!(!names.is_empty(), "TODO: no metrics file is named\n  law: {law}\n  run {program}");
    let mut lines = Vec::new();
    for name in names {
        let files = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name));
        assert!(
            !files.is_empty(),
            "TODO: {name} is no metrics file, and no folder with .jsonl files\n  law: {law}\n  run {program}"
        );
        for path in files {
            lines.extend(lines_of_file(&path, program));
        }
    }
    lines
}

#[track_caller]
fn lines_of_file(path: &Path, program: &str) -> Vec<Line> {
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert!(!text.trim().is_empty(), "{file} is empty: the run had no epoch");
    let mut lines = Vec::new();
    for (number, text) in (1..).zip(text.lines()) {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let Some(kind) = value["kind"].as_str().map(str::to_owned) else {
            panic!("{file}, line {number}: no line that --metrics writes\n  run {program}")
        };
        lines.push(Line { file: file.clone(), kind, value });
    }
    lines
}

/// The file, or the `.jsonl` files of the folder in the order of their names.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    files.sort();
    files
}

impl Line {
    /// Reads the fields of the line.
    /// Panics when they are others: another version of the program wrote the file.
    #[track_caller]
    pub fn read<T: DeserializeOwned>(&self) -> T {
        let Self { file, kind, value } = self;
        serde_json::from_value(value.clone())
            .unwrap_or_else(|error| panic!("{file}: a line of kind {kind}: {error}"))
    }
}

/// Reads the summaries of all trainings in the files, as [`lines`] does.
/// Panics when a file has no summary, when a run was interrupted, and when the trainings differ in anything but devices,
/// batch, rate and seed.
#[track_caller]
pub fn trainings(names: &[&str], program: &str) -> Vec<Summary> {
    let lines = lines(names, program);
    for line in &lines {
        assert!(
            ["epoch", "summary", "comparison", "accuracy"].contains(&line.kind.as_str()),
            "{}: a line of kind {}, which another program writes\n  run {program}",
            line.file,
            line.kind
        );
        let has_summary = |other: &Line| other.file == line.file && other.kind == "summary";
        assert!(
            lines.iter().any(has_summary),
            "{}: no summary, so the run has not ended\n  run it again, and wait for its end",
            line.file
        );
    }
    let of_kind = lines.iter().filter(|line| line.kind == "summary");
    let runs: Vec<(&str, Summary)> =
        of_kind.map(|line| (line.file.as_str(), line.read())).collect();
    let settings = |run: &Summary| {
        let (training, test) = run.images;
        format!("{}, {training} and {test} images, {} epochs", run.data, run.options.epochs)
    };
    for (file, run) in &runs {
        assert!(
            !run.interrupted,
            "{file}: the run was interrupted\n  run it again, and wait for its end"
        );
        let (first, expected) = &runs[0];
        if settings(run) != settings(expected) {
            crate::panicking::fail(
                &format!("{file} and {first} are not comparable"),
                &settings(expected),
                &settings(run),
                "an experiment changes one thing at a time",
            );
        }
    }
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Compares a number of the answer with the one that the files give.
/// Panics when they differ by more than `tolerance`. The message names the law, and does not give the number away.
#[track_caller]
pub fn compare(what: &str, expected: f64, got: f64, tolerance: f64, law: &str) {
    // A NaN differs, too.
    let agrees = (got - expected).abs() <= tolerance;
    if agrees {
        return;
    }
    let (todo, wanted) = match got.partial_cmp(&expected) {
        None => ("TODO: ", "a number"),
        Some(std::cmp::Ordering::Less) => ("", "a larger number, from the files"),
        Some(_) => ("", "a smaller number, from the files"),
    };
    crate::panicking::fail(&format!("{todo}{what}"), wanted, &got.to_string(), law);
}

/// Demands a reason of some words.
#[track_caller]
pub fn reason(text: &str) {
    let words = text.split_whitespace().count();
    assert!(
        words >= WORDS,
        "TODO: the reason has {words} words\n  expected a sentence, at least {WORDS} words\n  \
         law: an experiment ends with a reason, and not with a number"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::catch;

    fn message_of(names: &[&str]) -> String {
        catch(|| trainings(names, "the program")).unwrap_err().message
    }

    /// A file with this text; the name is absolute, and so replaces the course's folder.
    fn file(name: &str, text: &str) -> String {
        let folder = std::env::temp_dir().join(format!("metrics-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    }

    fn summary(epochs: usize, interrupted: bool) -> String {
        format!(
            "{{\"kind\":\"summary\",\"data\":\"garments\",\"images\":[60,10],\"options\":{{\"epochs\":{epochs},\"batch_size\":8,\
             \"learning_rate\":0.1,\"seed\":1}},\"devices\":[\"cpu:0\"],\"method\":null,\"interrupted\":{interrupted},\
             \"test_accuracy\":0.5}}\n"
        )
    }

    #[test]
    fn files_that_are_no_experiment_are_named() {
        let right = file("right.jsonl", &summary(2, false));
        assert_eq!(trainings(&[&right, &right], "the program").len(), 2);
        for (text, part) in [
            ("", "other.jsonl is empty"),
            ("epoch 1/2  loss 2.3\n", "other.jsonl, line 1: no line that --metrics writes"),
            (
                "{\"kind\":\"calibration\"}\n",
                "a line of kind calibration, which another program writes",
            ),
            ("{\"kind\":\"epoch\"}\n", "other.jsonl: no summary, so the run has not ended"),
            ("{\"kind\":\"summary\"}\n", "other.jsonl: a line of kind summary: missing field"),
            (&summary(2, true), "other.jsonl: the run was interrupted"),
            (
                &summary(3, false),
                "other.jsonl and right.jsonl are not comparable\n  expected garments, 60 and 10 images, 2 epochs",
            ),
        ] {
            let other = file("other.jsonl", text);
            let message = message_of(&[&right, &other]);
            assert!(message.contains(part), "{message}");
        }
        assert!(message_of(&[]).contains("TODO: no metrics file is named"));
        assert!(message_of(&["nowhere"]).contains("TODO: nowhere is no metrics file"));
        assert!(message_of(&["nowhere"]).ends_with("run the program"));
    }

    #[test]
    fn numbers_have_a_tolerance_and_reasons_words() {
        compare("x", 1.0, 1.01, 0.02, "");
        let wrong =
            |got| catch(|| compare("the loss", 1.0, got, 0.02, "a law")).unwrap_err().message;
        let told = "the loss\n  expected a smaller number, from the files\n  got      1.03";
        assert!(wrong(1.03).starts_with(told));
        assert!(wrong(-1.0).contains("expected a larger number"));
        assert!(wrong(f64::NAN).starts_with("TODO: the loss"));
        reason("with twice the batch there are half as many steps");
        assert!(catch(|| reason("because")).is_err());
    }
}
