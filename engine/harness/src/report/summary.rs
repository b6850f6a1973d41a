//! The result of a run, as a line on the terminal and as a line of `--metrics`; accuracy by epoch of several runs.

use std::fmt;

use serde::Serialize;

use super::{columns, listed, seconds, wrapped};
use crate::records::{EpochRecord, TrainOptions, Unit};
use crate::statistics::chance;

#[derive(Debug)]
pub(crate) struct FinishedRun {
    pub(super) summary: Summary,
    pub(super) records: Vec<EpochRecord>,
}

/// The settings and the result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The run's name, as in the lines of its epochs.
    pub run: String,
    /// The data set's name.
    pub data: String,
    /// The number of training images and of test images. Of a text, the number of tokens.
    pub images: (usize, usize),
    /// The samples that the run counts.
    #[serde(skip)]
    pub unit: Unit,
    /// The hyperparameters.
    pub options: TrainOptions,
    /// The element type of the layers. Weights have the same type, except that weights of bf16 layers are f32.
    pub dtype: String,
    /// The devices, in rank order.
    pub devices: Vec<String>,
    /// A note about the times, for example that devices shared a core.
    pub note: Option<String>,
    /// Whether devices shared a core or a GPU.
    pub shared: bool,
    /// A note that other programs used the cores during the run.
    pub busy: Option<String>,
    /// The method by which several devices share gradients. `None` for one device.
    pub method: Option<String>,
    /// The number of epochs that were trained. An interrupted epoch counts as a fraction.
    pub epochs_trained: f64,
    /// Whether Ctrl-C ended the run early.
    pub interrupted: bool,
    /// The accuracy on the test images at the end.
    pub test_accuracy: f64,
    /// The accuracy of guessing.
    #[serde(skip)]
    pub guessing: f64,
    /// The average training time of an epoch.
    pub seconds_per_epoch: f64,
    /// All 64 digits of the weights hash.
    pub weights_hash: String,
    /// The versions of the course and of candle.
    pub versions: Versions,
}

impl Summary {
    /// Whether the run ended with a test accuracy that guessing does not explain.
    pub fn has_learned(&self) -> bool {
        self.test_accuracy > self.guessing + chance(self.guessing, self.images.1)
    }
}

impl fmt::Display for Summary {
    /// `one device: test acc 0.84, 2.8 s/epoch, weights 3f9c0a12`, and below it the devices: `  on [cpu:0 (1 core)]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = format!(
            "{}: test acc {}, {} s/epoch, weights {}",
            self.run,
            super::accuracy(self.test_accuracy),
            seconds(self.seconds_per_epoch),
            &self.weights_hash[..8]
        );
        let mut devices = format!("  on [{}]", listed(&self.devices));
        if self.interrupted {
            let Self { epochs_trained, options: TrainOptions { epochs, .. }, .. } = self;
            devices += &format!(", interrupted after {epochs_trained:.2} of {epochs} epochs");
        }
        let busy = self.busy.iter().map(|note| format!("\n  note: {note}")).collect::<String>();
        f.write_str(&wrapped(&format!("{result}\n{devices}{busy}"), columns()))
    }
}

/// The versions of the course and of candle that this program was built from.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Versions {
    course: &'static str,
    candle: &'static str,
}

impl Versions {
    /// The versions of this program.
    pub fn of_this_binary() -> Self {
        Self { course: env!("CARGO_PKG_VERSION"), candle: "0.11.1" }
    }
}

/// The blocks from the lowest accuracy to the highest.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The most blocks in a line. With the run's name a line has at most 60 columns.
const WIDEST: usize = 32;

/// Draws the test accuracy of runs by epoch, each as a line of blocks with a common scale. If no run has learned, the scale is that
/// of all accuracies, 0 to 1. `None` without two epochs.
pub(super) fn sparklines(runs: &[FinishedRun]) -> Option<String> {
    if runs.iter().all(|run| run.records.len() < 2) {
        return None;
    }
    let lines: Vec<Vec<f64>> = runs.iter().map(heights).collect();
    let (low, high, scale) = if runs.iter().any(|run| run.summary.has_learned()) {
        let all = || lines.iter().flatten().copied();
        let (low, high) = (all().fold(1.0, f64::min), all().fold(0.0, f64::max));
        (low, high, format!("from ▁ {low:.3} to █ {high:.3}"))
    } else {
        (0.0, 1.0, "from ▁ 0 to █ 1: no better than guessing".to_owned())
    };
    let block = |value: &f64| {
        let height = if high > low { (value - low) / (high - low) } else { 1.0 };
        BLOCKS[((height * BLOCKS.len() as f64) as usize).min(BLOCKS.len() - 1)]
    };
    let widest = lines.iter().map(Vec::len).max().unwrap_or(0);
    let drawn = runs.iter().zip(&lines).map(|(run, values)| {
        let blocks: String = values.iter().map(block).collect();
        format!("\n  {blocks:widest$}  {}", run.summary.run)
    });
    Some(format!("test acc by epoch, {scale}{}", drawn.collect::<String>()))
}

/// Returns one accuracy per column: of every epoch, or of the last epoch in each of [`WIDEST`] equal parts of the run.
fn heights(run: &FinishedRun) -> Vec<f64> {
    let epochs = run.records.len();
    let columns = epochs.min(WIDEST);
    let last_epoch = |column| (column + 1) * epochs / columns - 1;
    (0..columns).map(|column| run.records[last_epoch(column)].test_accuracy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_candle_is_the_one_that_is_built() {
        let workspace = include_str!("../../../../Cargo.toml");
        let asked_for =
            format!("candle-core = {{ version = \"={}\"", Versions::of_this_binary().candle);
        assert!(workspace.contains(&asked_for), "{asked_for}");
    }

    /// A run that ends with an accuracy of 1, or with that of guessing.
    fn run(name: &str, accuracies: &[f64], learned: bool) -> FinishedRun {
        let record = |&test_accuracy| EpochRecord { test_accuracy, ..EpochRecord::default() };
        let (run, test_accuracy) = (name.to_owned(), f64::from(u8::from(learned)));
        let summary = Summary { run, test_accuracy, images: (1, 100), ..Summary::default() };
        FinishedRun { summary, records: accuracies.iter().map(record).collect() }
    }

    #[test]
    fn runs_share_a_scale_and_full_blocks_are_for_one_that_has_learned() {
        let two = |first: &[f64], second: &[f64], learned| {
            vec![run("one", first, learned), run("two", second, false)]
        };
        for (runs, scale, blocks) in [
            // A shorter run is padded.
            (
                two(&[0.2, 0.5, 0.9], &[0.9, 0.2], true),
                "▁ 0.200 to █ 0.900",
                "▁▄█  one\n  █▁   two",
            ),
            (vec![run("one", &[0.5, 0.5], true)], "▁ 0.500 to █ 0.500", "██  one"),
            (
                two(&[0.1, 0.1], &[0.06, 0.15], false),
                "▁ 0 to █ 1: no better than guessing",
                "▁▁  one\n  ▁▂  two",
            ),
        ] {
            let drawn = format!("test acc by epoch, from {scale}\n  {blocks}");
            assert!(drawn.lines().all(|line| line.chars().count() <= 60), "{drawn}");
            assert_eq!(sparklines(&runs), Some(drawn));
        }
        assert_eq!(sparklines(&[run("one", &[0.5], true)]), None);
    }

    #[test]
    fn many_epochs_stay_narrow_and_end_with_the_last() {
        let epochs: Vec<f64> = (0..1000).map(|epoch| f64::from(epoch) / 1000.0).collect();
        let runs = [run("one device, all cores", &epochs, true)];
        let drawn = sparklines(&runs).unwrap();
        assert!(drawn.lines().all(|line| line.chars().count() <= 60), "{drawn}");
        assert_eq!(heights(&runs[0]).last(), Some(&0.999));
    }
}
