//! What came out: the rows of a table, each with ours and all peers.

use std::fmt;

use harness::report::counted;
use harness::statistics::median;
use serde::Serialize;
use xtask::number::four_digits;

use super::comparison::{Comparison, Topic, Unit};

#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) label: String,
    /// For each alternation, the median of each series.
    pub(super) runs: Vec<Vec<f64>>,
    pub(super) failure: Option<String>,
    pub(super) note: Option<String>,
}

impl Outcome {
    fn of_series(&self, series: usize) -> Vec<f64> {
        self.runs.iter().map(|medians| medians[series]).collect()
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Column {
    side: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    median: Option<f64>,
    /// Ours ÷ this, of each alternation.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// The median of each process, in the order in which they ran.
    runs: Vec<f64>,
}

impl Column {
    fn new(outcome: &Outcome, series: usize, best: Option<&Outcome>) -> Self {
        let runs = outcome.of_series(series);
        // Sides that failed half way have said nothing that can be relied on.
        let whole = outcome.failure.is_none() && !runs.is_empty();
        let best = best.filter(|_| whole).map(|best| best.of_series(series));
        let ratio = best.and_then(|best| Ratio::of_pairs(&best, &runs));
        Self {
            side: outcome.label.clone(),
            median: whole.then(|| four_digits(median(runs.iter().copied()))),
            ratio: ratio.map(Ratio::rounded),
            failure: outcome.failure.clone(),
            note: outcome.note.clone(),
            runs: runs.into_iter().map(four_digits).collect(),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) topic: Topic,
    what: String,
    series: &'static str,
    threads: String,
    unit: Unit,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    /// How many turns are whole, where somebody ended this early.
    #[serde(skip_serializing_if = "Option::is_none")]
    turns: Option<usize>,
    /// Which of our ways the ratios are about: the one with the smallest median.
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<String>,
    ours: Vec<Column>,
    peers: Vec<Column>,
}

impl Row {
    /// A row for each series of a comparison, of which only so many turns are whole, if any number is given.
    pub(super) fn all(
        comparison: &Comparison,
        outcomes: &[Outcome],
        turns: Option<usize>,
    ) -> Vec<Self> {
        let (ours, peers) = outcomes.split_at(comparison.ours.len());
        let row = |(series, name): (usize, &&'static str)| {
            let column = |outcome, best| Column::new(outcome, series, best);
            let middle = |outcome: &Outcome| median(outcome.of_series(series));
            let whole = ours.iter().filter(|ours| ours.failure.is_none() && !ours.runs.is_empty());
            let best = whole.min_by(|a, b| middle(a).total_cmp(&middle(b)));
            Self {
                topic: comparison.topic,
                what: comparison.what.clone(),
                series: name,
                threads: comparison.threads.to_string(),
                unit: comparison.unit,
                note: comparison.note,
                turns,
                best: best.map(|best| best.label.clone()),
                ours: ours.iter().map(|outcome| column(outcome, None)).collect(),
                peers: peers.iter().map(|outcome| column(outcome, best)).collect(),
            }
        };
        comparison.series.iter().enumerate().map(row).collect()
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = &str> {
        let columns = self.ours.iter().chain(&self.peers);
        columns.filter(|column| column.failure.is_some()).map(|column| column.side.as_str())
    }

    /// What is measured, with our best way where there are several.
    fn title(&self) -> String {
        let mut title = self.what.clone();
        // "step" and the like say nothing that the name of the work does not.
        if !matches!(self.series, "step" | "drawing" | "decoding") {
            title.push_str(&format!(", {}", self.series));
        }
        match &self.best {
            Some(best) if self.ours.len() > 1 => format!("{title} (ours: {best})"),
            _ => title,
        }
    }

    fn our_best(&self) -> Option<&Column> {
        self.ours.iter().find(|column| Some(&column.side) == self.best.as_ref())
    }
}

pub(super) struct Header;

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, ["work", "threads", "ours", "peer", "theirs", "ours ÷ theirs (min–max)"])
    }
}

/// One line for each peer; the first names the work.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantity = |column: &Column| column.median.map(|median| quantity(median, self.unit));
        let ours = self.our_best().and_then(quantity).unwrap_or_else(|| "–".to_owned());
        let mut head = [self.title(), self.threads.clone(), ours];
        if self.peers.is_empty() {
            line(f, [&head[0], &head[1], &head[2], "", "", ""])?;
        }
        for (position, peer) in self.peers.iter().enumerate() {
            if position > 0 {
                writeln!(f)?;
                head = Default::default();
            }
            let theirs = quantity(peer).unwrap_or_else(|| "failed".to_owned());
            let ratio = peer.ratio.map_or_else(String::new, |Ratio { median, min, max }| {
                format!("{} ({}–{})", digits(median), digits(min), digits(max))
            });
            line(f, [&head[0], &head[1], &head[2], &peer.side, &theirs, &ratio])?;
        }
        for column in self.ours.iter().chain(&self.peers) {
            if let Some(failure) = &column.failure {
                write!(f, "\n  {} failed: {failure}", column.side)?;
            }
            if let Some(note) = &column.note {
                write!(f, "\n  {}: {note}", column.side)?;
            }
        }
        if let Some(turns) = self.turns {
            write!(f, "\n  ended early, after {}", counted(turns, "turn"))?;
        }
        match self.note {
            Some(note) => write!(f, "\n  {note}"),
            None => Ok(()),
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, cells: [&str; 6]) -> fmt::Result {
    let [work, threads, ours, peer, theirs, ratio] = cells;
    let line = format!("{work:<46} {threads:>7} {ours:>9}  {peer:<19} {theirs:>9}  {ratio}");
    f.write_str(line.trim_end())
}

/// A time or a size, in the unit that suits it.
pub(super) fn quantity(number: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => format!("{} MB", digits(number / 1e6)),
        Unit::Seconds if number < 1e-3 => format!("{} µs", digits(number * 1e6)),
        Unit::Seconds if number < 10.0 => format!("{} ms", digits(number * 1e3)),
        Unit::Seconds => format!("{} s", digits(number)),
    }
}

/// A number with two or three digits that mean something.
fn digits(number: f64) -> String {
    match number {
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        0.1.. => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

/// One quantity ÷ another, over several alternations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Ratio {
    median: f64,
    min: f64,
    max: f64,
}

impl Ratio {
    /// Of numbers that were measured in turn: each pair shares what the machine was like at the time, so the
    /// ratios are of pairs. `None` where there is no pair.
    fn of_pairs(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> =
            ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        if ratios.is_empty() {
            return None;
        }
        Some(Self {
            median: median(ratios.iter().copied()),
            min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            max: ratios.iter().copied().fold(0.0, f64::max),
        })
    }

    /// With as many digits as are worth keeping.
    fn rounded(self) -> Self {
        let Self { median, min, max } = self;
        Self { median: four_digits(median), min: four_digits(min), max: four_digits(max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_pairs() {
        // The machine was twice as slow in the second alternation: no ratio shows it.
        let ratio = Ratio::of_pairs(&[1.0, 2.0, 1.5], &[2.0, 4.0, 1.0]).unwrap();
        assert_eq!(ratio, Ratio { median: 0.5, min: 0.5, max: 1.5 });
        // The ratio of the medians would be another one.
        assert_eq!(median([1.0, 2.0, 1.5]) / median([2.0, 4.0, 1.0]), 0.75);
        assert_eq!(Ratio::of_pairs(&[], &[1.0]), None);
    }
}
