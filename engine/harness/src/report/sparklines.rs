//! Accuracy by epoch as a line of blocks on the terminal. All runs have the same scale.

use std::fmt;

use super::summary::FinishedRun;

/// The blocks from the lowest accuracy to the highest.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The most blocks in a line. With the run's name a line has at most 60 columns.
const WIDEST: usize = 32;

/// The test accuracy of runs by epoch, drawn by `Display`.
pub(super) struct Sparklines<'a>(pub(super) &'a [FinishedRun]);

impl Sparklines<'_> {
    /// Whether no run has two epochs to compare.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|run| run.records.len() < 2)
    }
}

impl fmt::Display for Sparklines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<(&str, Vec<f64>)> =
            self.0.iter().map(|run| (run.name.as_str(), columns(run))).collect();
        let all = || lines.iter().flat_map(|(_, values)| values.iter().copied());
        let (low, high) = (all().fold(1.0, f64::min), all().fold(0.0, f64::max));
        let widest = lines.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
        write!(f, "test acc by epoch, from ▁ {low:.3} to █ {high:.3}")?;
        for (name, values) in &lines {
            let blocks: String = values.iter().map(|value| block(*value, low, high)).collect();
            let gap = widest - values.len();
            write!(f, "\n  {blocks}{:gap$}  {name}", "")?;
        }
        Ok(())
    }
}

/// Returns one accuracy per column: of every epoch, or of the last epoch in each of [`WIDEST`] equal parts of the run.
fn columns(run: &FinishedRun) -> Vec<f64> {
    let epochs = run.records.len();
    let columns = epochs.min(WIDEST);
    let last_epoch = |column| (column + 1) * epochs / columns - 1;
    (0..columns).map(|column| run.records[last_epoch(column)].test_accuracy).collect()
}

fn block(value: f64, low: f64, high: f64) -> char {
    let height = if high > low { (value - low) / (high - low) } else { 1.0 };
    BLOCKS[((height * BLOCKS.len() as f64) as usize).min(BLOCKS.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::EpochRecord;

    fn run(name: &str, accuracies: impl IntoIterator<Item = f64>) -> FinishedRun {
        let record = |test_accuracy| EpochRecord { test_accuracy, ..EpochRecord::default() };
        let records = accuracies.into_iter().map(record).collect();
        FinishedRun { name: name.to_owned(), devices: String::new(), records }
    }

    #[test]
    fn runs_share_a_scale_and_a_shorter_one_is_padded() {
        let runs = [run("one", [0.2, 0.5, 0.9]), run("two", [0.9, 0.2])];
        let drawn = Sparklines(&runs).to_string();
        assert_eq!(drawn, "test acc by epoch, from ▁ 0.200 to █ 0.900\n  ▁▄█  one\n  █▁   two");
    }

    #[test]
    fn many_epochs_stay_narrow_and_end_with_the_last() {
        let runs = [run("one device, all cores", (0..1000).map(|epoch| f64::from(epoch) / 1000.0))];
        let drawn = Sparklines(&runs).to_string();
        assert!(drawn.lines().all(|line| line.chars().count() <= 60), "{drawn}");
        assert_eq!(columns(&runs[0]).last(), Some(&0.999));
    }

    #[test]
    fn one_epoch_draws_nothing_and_equal_ones_are_flat() {
        assert!(Sparklines(&[run("one", [0.5])]).is_empty());
        assert!(Sparklines(&[run("one", [0.5, 0.5])]).to_string().contains("██"));
    }
}
