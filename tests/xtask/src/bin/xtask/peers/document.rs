//! The file: all rows, and what has to be known about them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use harness::report::file;
use harness::report::summary::Versions;
use serde::Serialize;
use serde_json::Value;
use xtask::Machine;

use super::report::Row;
use crate::machine::today;
use course::doctor::probe::{ask, first_line};

#[derive(Clone, Debug, Serialize)]
pub(super) struct Document {
    command: String,
    date: Option<String>,
    alternations: usize,
    /// Whether this only tried out that everything runs.
    quick: bool,
    machine: Machine,
    versions: Software,
    rows: Vec<Row>,
    /// All work that there is, by name: of it, a run may do a part.
    #[serde(skip)]
    all: Vec<String>,
}

impl Document {
    pub(super) fn new(
        command: String,
        alternations: usize,
        quick: bool,
        machine: Machine,
        peers: BTreeMap<String, Option<String>>,
        all: Vec<String>,
    ) -> Self {
        Self {
            command,
            date: today(),
            alternations,
            quick,
            machine,
            versions: Software::with(peers),
            rows: Vec::new(),
            all,
        }
    }

    pub(super) fn add(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    /// The stored table with this one's rows: in place of its rows of the same work, or behind those of the same topic.
    /// Of these topics, rows of work that there is no longer are left out.
    pub(super) fn put_into(&self, stored: &str) -> anyhow::Result<Value> {
        let mut stored: Value = serde_json::from_str(stored).context("the stored table")?;
        let new = serde_json::to_value(self)?;
        for what in ["machine", "versions", "alternations", "quick"] {
            if comparable(&stored, what) != comparable(&new, what) {
                bail!("the stored table has another entry \"{what}\": measure all of it");
            }
        }
        let rows_of = |table: &Value| table["rows"].as_array().cloned().unwrap_or_default();
        let (mut rows, own) = (rows_of(&stored), rows_of(&new));
        let there_is = |row: &Value| self.all.iter().any(|what| row["what"] == **what);
        let of_own_topic = |row: &Value| own.iter().any(|own| own["topic"] == row["topic"]);
        rows.retain(|row| there_is(row) || !of_own_topic(row));
        for row in &own {
            let like =
                |keys: &[&str], other: &Value| keys.iter().all(|key| other[*key] == row[*key]);
            let same = |other: &Value| like(&["topic", "what", "series", "threads"], other);
            if let Some(place) = rows.iter().position(same) {
                // Of fewer turns than were to be, a row replaces none that is whole.
                let is_whole = |row: &Value| row["turns"].is_null();
                if is_whole(row) || !is_whole(&rows[place]) {
                    rows[place] = row.clone();
                }
                continue;
            }
            let last = rows.iter().rposition(|other| like(&["topic"], other));
            rows.insert(last.map_or(rows.len(), |last| last + 1), row.clone());
        }
        stored["rows"] = rows.into();
        stored["date"] = new["date"].clone();
        Ok(stored)
    }

    /// Writes the file: this table, or what `--update` puts into one, with these rows in it.
    pub(super) fn write(&self, path: &Path, stored: Option<&str>) -> anyhow::Result<()> {
        let updated = stored.map(|stored| self.put_into(stored)).transpose()?;
        file::write(path, |file| {
            match &updated {
                Some(table) => serde_json::to_writer_pretty(&mut *file, table)?,
                None => serde_json::to_writer_pretty(&mut *file, self)?,
            }
            writeln!(file)
        })
        .with_context(|| format!("{}", path.display()))
    }

    pub(super) fn failures(&self) -> Vec<&str> {
        let mut failed: Vec<&str> = self.rows.iter().flat_map(Row::failures).collect();
        failed.sort_unstable();
        failed.dedup();
        failed
    }
}

/// An entry as rows of one table have it in common. A virtual machine's memory may grow while it is used: it is only told.
fn comparable(table: &Value, what: &str) -> Value {
    let mut entry = table[what].clone();
    if let Some(machine) = entry.as_object_mut().filter(|_| what == "machine") {
        machine.remove("memory");
    }
    entry
}

/// The versions of what did the work: numbers mean little without them.
#[derive(Clone, Debug, Serialize)]
struct Software {
    #[serde(flatten)]
    ours: Versions,
    rustc: Option<String>,
    #[serde(flatten)]
    peers: BTreeMap<String, Option<String>>,
}

impl Software {
    fn with(peers: BTreeMap<String, Option<String>>) -> Self {
        let rustc = ask("rustc", &["--version"]).ok().map(first_line);
        Self { ours: Versions::of_this_binary(), rustc, peers }
    }
}
