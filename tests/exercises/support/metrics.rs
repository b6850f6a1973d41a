//! The files that programs of the course write with `--metrics`, as the answer to an experiment names them.
//!
//! An experiment's answer has numbers, and the names of the files that the numbers come from. A check reads the files and
//! computes the numbers again.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use harness::statistics::mean;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::outcome::{Finding, Outcome, demand, expect, in_a_row, same};

/// Fewer seeds say nothing about chance.
const SEEDS: usize = 3;

const CHANCE: &str = "accuracies differ from seed to seed: compare the same seeds, three or more";

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

/// The trainings with one setting, one for each seed, in the order of the seeds.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The setting, as messages name it.
    pub name: String,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// The accuracies.
    pub accuracies: Vec<f64>,
}

impl Setting {
    /// The setting of these trainings.
    pub fn of<'a>(name: String, runs: impl Iterator<Item = &'a Summary>) -> Self {
        let runs = runs.map(|run| (run.options.seed, run.test_accuracy));
        let (seeds, accuracies) = runs.collect::<BTreeMap<_, _>>().into_iter().unzip();
        Self { name, seeds, accuracies }
    }

    /// The mean of the accuracies.
    pub fn mean(&self) -> f64 {
        mean(&self.accuracies)
    }
}

/// Demands that all settings have the same seeds, and enough.
pub fn have_the_same_seeds(settings: &[&Setting]) -> Outcome {
    let expected = &settings[0].seeds;
    let wanted = match expected.len() {
        SEEDS.. => in_a_row(expected),
        _ => format!("at least {SEEDS} seeds, the same for all settings"),
    };
    settings.iter().try_for_each(|Setting { name, seeds, .. }| {
        let right = seeds == expected && seeds.len() >= SEEDS;
        expect(right, format!("the seeds of {name}"), (&wanted, in_a_row(seeds)), CHANCE)
    })
}

/// Reads all lines of the files. A name is that of a file, or of a folder whose `.jsonl` files count; paths begin at the
/// course's folder. `program` is the command that writes such files.
/// Fails when there is no such file, and when a line is no line of metrics.
pub fn lines(names: &[&str], program: &str) -> Outcome<Vec<Line>> {
    let unusable = |what: String| {
        let law = "its numbers come from the files that the program writes";
        Finding::new(what).note(Some(format!("run {program}"))).law(law)
    };
    demand(!names.is_empty(), || unusable("TODO: no metrics file is named".to_owned()))?;
    let mut lines = Vec::new();
    for name in names {
        let files = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name));
        let none = "is no metrics file, and no folder with .jsonl files";
        demand(!files.is_empty(), || unusable(format!("TODO: {name} {none}")))?;
        for path in files {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).map_err(|it| unusable(format!("{file}: {it}")))?;
            let empty = || unusable(format!("{file} is empty: the run had no epoch"));
            demand(!text.trim().is_empty(), empty)?;
            for (number, text) in (1..).zip(text.lines()) {
                let value: Value = serde_json::from_str(text).unwrap_or_default();
                let other =
                    || unusable(format!("{file}, line {number}: no line that --metrics writes"));
                let kind = value["kind"].as_str().ok_or_else(other)?.to_owned();
                lines.push(Line { file: file.clone(), kind, value });
            }
        }
    }
    Ok(lines)
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
    /// Fails when they are others: another version of the program wrote the file.
    pub fn read<T: DeserializeOwned>(&self) -> Outcome<T> {
        let Self { file, kind, value } = self;
        let read = serde_json::from_value(value.clone());
        read.map_err(|error| Finding::new(format!("{file}: a line of kind {kind}: {error}")))
    }
}

/// Reads the summaries of all trainings in the files, as [`lines`] does.
/// Fails when a file has no summary, when a run was interrupted, and when the trainings differ in anything but devices,
/// batch, rate and seed.
pub fn trainings(names: &[&str], program: &str) -> Outcome<Vec<Summary>> {
    let lines = lines(names, program)?;
    let again = |what: String| Finding::new(what).note(Some(format!("run {program}")));
    let mut runs: Vec<Summary> = Vec::new();
    for line @ Line { file, kind, .. } in &lines {
        let known = ["epoch", "summary", "comparison", "accuracy"].contains(&kind.as_str());
        let other =
            || again(format!("{file}: a line of kind {kind}, which another program writes"));
        demand(known, other)?;
        let mut of_file = lines.iter().filter(|other| other.file == *file);
        let ended = of_file.any(|other| other.kind == "summary");
        demand(ended, || again(format!("{file}: no summary, so the run has not ended")))?;
        if kind != "summary" {
            continue;
        }
        let run: Summary = line.read()?;
        demand(!run.interrupted, || again(format!("{file}: the run was interrupted")))?;
        let settings = |Summary { data, images: (training, test), options, .. }: &Summary| {
            format!("{data}, {training} and {test} images, {} epochs", options.epochs)
        };
        let [first, own] = [runs.first().unwrap_or(&run), &run].map(settings);
        let law = "an experiment changes one thing at a time";
        same(format!("{file} is not comparable with the first run"), first, own, law)?;
        runs.push(run);
    }
    Ok(runs)
}

/// Demands that a field of the answer is right. An `open` field is still as the exercise gave it.
pub fn field(
    name: impl Display,
    open: bool,
    right: bool,
    sides: (impl Display, impl Display),
    law: &str,
) -> Outcome {
    expect(right, format!("{}{name}", if open { "TODO: " } else { "" }), sides, law)
}

/// Compares a number of the answer with the one that the files give, which the message does not give away.
pub fn compare(name: impl Display, expected: f64, got: f64, tolerance: f64, law: &str) -> Outcome {
    let wanted = match got.partial_cmp(&expected) {
        None => "a number",
        Some(Ordering::Less) => "a larger number, from the files",
        Some(_) => "a smaller number, from the files",
    };
    // A NaN differs, too.
    let right = (got - expected).abs() <= tolerance;
    field(name, got.is_nan(), right, (wanted, got), law)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_experiment_are_named() {
        let folder = std::env::temp_dir().join(format!("metrics-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let summary = |epochs: usize, interrupted: bool| {
            format!(
                "{{\"kind\":\"summary\",\"data\":\"garments\",\"images\":[60,10],\"options\":{{\"epochs\":{epochs},\
                 \"batch_size\":8,\"learning_rate\":0.1,\"seed\":1}},\"devices\":[],\"interrupted\":{interrupted},\
                 \"test_accuracy\":0.5}}\n"
            )
        };
        fs::write(path("right.jsonl"), summary(2, false)).unwrap();
        for (text, part) in [
            ("", "other.jsonl is empty"),
            ("epoch 1/2  loss 2.3\n", "other.jsonl, line 1: no line that --metrics writes"),
            ("{\"kind\":\"epoch\"}\n", "other.jsonl: no summary, so the run has not ended"),
            ("{\"kind\":\"summary\"}\n", "other.jsonl: a line of kind summary: missing field"),
            (&summary(2, true), "other.jsonl: the run was interrupted"),
            (&summary(3, false), "\n  expected garments, 60 and 10 images, 2 epochs"),
        ] {
            fs::write(path("other.jsonl"), text).unwrap();
            let found = trainings(&[&path("right.jsonl"), &path("other.jsonl")], "it");
            let message = found.unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
