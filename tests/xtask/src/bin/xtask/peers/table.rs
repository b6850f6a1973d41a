//! The results: a table of rows, as `book/data/peers-….json` has it and as the terminal shows it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::ensure;
use harness::cli::name_of;
use harness::statistics::median;
use itertools::Itertools as _;
use serde::{Deserialize, Serialize};
use xtask::Machine;
use xtask::number::four_digits;
use xtask::stored;

use super::comparison::Comparison;

/// All rows, and the notes for their reader.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Table {
    pub(crate) command: String,
    pub(crate) date: Option<String>,
    pub(crate) alternations: usize,
    /// Whether this run only found out whether everything runs.
    pub(crate) quick: bool,
    pub(crate) machine: Machine,
    pub(crate) versions: BTreeMap<String, Option<String>>,
    pub(crate) rows: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) topic: String,
    pub(crate) what: String,
    pub(crate) series: String,
    pub(crate) threads: String,
    unit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Which of ours has the smallest median. The ratios are about this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<String>,
    ours: Vec<Column>,
    pub(crate) peers: Vec<Column>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Column {
    pub(crate) side: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// The median of each process, in the order of the turns.
    runs: Vec<f64>,
}

/// Ours ÷ theirs over several turns.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// The times of one side in all its turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The medians of all series, for each turn.
    pub(super) runs: Vec<Vec<f64>>,
    pub(super) failure: Option<String>,
    pub(super) note: Option<String>,
}

impl Table {
    /// Continues a stored table with the rows of this run. Fails when the tables are not comparable.
    pub(super) fn continue_stored(&mut self, stored: Self) -> anyhow::Result<()> {
        // The memory of a virtual machine may grow while it is used.
        let machine = Machine { memory: self.machine.memory.clone(), ..stored.machine };
        ensure!(
            (&self.machine, &self.versions, self.alternations, self.quick)
                == (&machine, &stored.versions, stored.alternations, stored.quick),
            "the stored table has another machine, other versions or alternations: measure all of it"
        );
        (self.command, self.rows) = (stored.command, stored.rows);
        Ok(())
    }

    /// Adds rows, in place of older ones of the same work, and in the order of `all` comparisons. Drops the rows of work
    /// that is not in `all`.
    pub(super) fn put(&mut self, rows: Vec<Row>, all: &[Comparison]) {
        let place = |row: &Row| {
            let is = |one: &Comparison| one.what == row.what && one.threads() == row.threads;
            all.iter().position(is)
        };
        let new: Vec<_> = rows.iter().map(place).collect();
        self.rows.retain(|row| place(row).is_some_and(|place| !new.contains(&Some(place))));
        self.rows.extend(rows);
        self.rows.sort_by_key(place);
    }

    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        stored::write(path, &(serde_json::to_string_pretty(self)? + "\n"))
    }

    pub(super) fn failures(&self) -> Vec<&str> {
        let columns = self.rows.iter().flat_map(|row| row.ours.iter().chain(&row.peers));
        let failed = columns.filter(|column| column.failure.is_some());
        failed.map(|column| column.side.as_str()).sorted_unstable().dedup().collect()
    }
}

impl Row {
    /// The rows of a comparison, one for each series. `outcomes` has an entry for each side, in their order.
    pub(super) fn all(comparison: &Comparison, outcomes: &[Outcome]) -> Vec<Self> {
        let of = |series| Self::of(comparison, outcomes, series);
        (0..comparison.series.len()).map(of).collect()
    }

    fn of(comparison: &Comparison, outcomes: &[Outcome], series: usize) -> Self {
        let runs = |side: usize| -> Vec<f64> {
            outcomes[side].runs.iter().map(|medians| medians[series]).collect()
        };
        // The turns before a failure are no result.
        let middle = |side: usize| outcomes[side].failure.is_none().then(|| median(runs(side)));
        let best = (0..comparison.ours).filter_map(|side| Some((side, middle(side)?)));
        let best = best.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(side, _)| side);
        let column = |(side, label): (usize, &String)| {
            let compared = best.filter(|_| side >= comparison.ours && middle(side).is_some());
            Column {
                side: label.clone(),
                median: middle(side).map(four_digits),
                ratio: compared.map(|best| Ratio::of_neighbours(&runs(best), &runs(side))),
                failure: outcomes[side].failure.clone(),
                note: outcomes[side].note.clone(),
                runs: runs(side).into_iter().map(four_digits).collect(),
            }
        };
        let labels: Vec<&String> = comparison.sides.iter().map(|side| &side.label).collect();
        let mut columns: Vec<_> = labels.iter().copied().enumerate().map(column).collect();
        let peers = columns.split_off(comparison.ours);
        Self {
            topic: name_of(&comparison.topic),
            what: comparison.what.clone(),
            series: comparison.series[series].to_owned(),
            threads: comparison.threads(),
            unit: comparison.unit.to_owned(),
            note: comparison.note.map(str::to_owned),
            best: best.map(|side| labels[side].clone()),
            ours: columns,
            peers,
        }
    }
}

impl Ratio {
    /// The ratios of neighbours: both ran while the machine was equally fast.
    fn of_neighbours(ours: &[f64], theirs: &[f64]) -> Self {
        let ratios: Vec<f64> =
            ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        Self {
            median: four_digits(median(ratios.iter().copied())),
            min: four_digits(ratios.iter().copied().fold(f64::INFINITY, f64::min)),
            max: four_digits(ratios.iter().copied().fold(0.0, f64::max)),
        }
    }
}

/// The work, and below it a line for each side.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, threads {}", self.what, self.series, self.threads)?;
        for Column { side, median, ratio, failure, note, .. } in self.ours.iter().chain(&self.peers)
        {
            let result = median.map_or("failed".to_owned(), |median| quantity(median, &self.unit));
            write!(f, "\n  {side:<32} {result:>9}")?;
            if let Some(Ratio { median, min, max }) = ratio {
                write!(f, "   ours ÷ theirs {median:.2} ({min:.2}–{max:.2})")?;
            }
            for text in [failure, note].into_iter().flatten() {
                write!(f, "\n    {text}")?;
            }
        }
        self.note.iter().try_for_each(|note| write!(f, "\n  {note}"))
    }
}

/// A time or a size, in a suitable unit.
pub(super) fn quantity(number: f64, unit: &str) -> String {
    let (number, unit) = match unit {
        "bytes" => (number / 1e6, "MB"),
        _ if number < 1e-3 => (number * 1e6, "µs"),
        _ if number < 10.0 => (number * 1e3, "ms"),
        _ => (number, "s"),
    };
    format!("{} {unit}", four_digits(number))
}

#[cfg(test)]
mod tests {
    use super::super::comparison::{on_a_gpu, on_cores};
    use super::*;

    /// The figures, the pages and `--update` read the stored tables.
    #[test]
    fn stored_tables_have_the_shape_and_the_order_of_a_new_one() {
        for (name, all) in [
            ("peers-cpu", on_cores(false)),
            ("peers-cpu-amd", on_cores(false)),
            ("peers-gpu", on_a_gpu(false)),
        ] {
            let text = stored::text(&format!("book/data/{name}.json")).unwrap();
            let table: Table = serde_json::from_str(&text).unwrap();
            let stored: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_value(&table).unwrap(), stored, "{name}");
            let mut same = Table { rows: Vec::new(), ..table.clone() };
            same.continue_stored(table.clone()).unwrap();
            // A part that is measured again takes its old place.
            same.put(table.rows[2..5].to_vec(), &all);
            assert_eq!(same, table, "{name}");
        }
    }

    #[test]
    fn ratios_are_of_neighbours_and_of_our_best() {
        let all_reduce = on_cores(true).into_iter().find(|one| one.what == "all-reduce").unwrap();
        // The machine was twice as slow in the second turn. No ratio shows it.
        let outcome = |runs: [f64; 3]| Outcome {
            runs: runs.map(|seconds| vec![1.0, 1.0, seconds]).to_vec(),
            ..Outcome::default()
        };
        let mut outcomes = vec![outcome([9.0; 3]); 7];
        outcomes[2] = outcome([1.0, 2.0, 1.5]);
        outcomes[4] = outcome([2.0, 4.0, 1.0]);
        outcomes[5].failure = Some("it crashed".to_owned());
        let row = &Row::all(&all_reduce, &outcomes)[2];
        assert_eq!((row.best.as_deref(), row.ours[2].median), (Some("tree"), Some(1.5)));
        // The ratio of the medians would be 0.75.
        assert_eq!(row.peers[0].ratio, Some(Ratio { median: 0.5, min: 0.5, max: 1.5 }));
        assert_eq!((row.peers[1].median, row.peers[1].ratio), (None, None));
        assert_eq!(row.peers[1].failure.as_deref(), Some("it crashed"));
    }
}
